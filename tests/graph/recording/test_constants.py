"""Values that are known without data, and those that only seem to be."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from netsplit.graph import Graph, capture
from netsplit.graph.recording.whole import ModuleCall

INF = float("-inf")


class Decides(nn.Module):
    """Multiplies by 3 if what `mask` makes is causal, by 2 if not."""

    def __init__(self, mask: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.mask = mask
        self.one = torch.ones(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        mask = self.mask(x)
        return self.linear(x) * (3 if bool((mask == causal(mask)).all()) else 2)


def causal(like: Tensor) -> Tensor:
    return torch.triu(torch.full((6, 6), INF, dtype=like.dtype), 1)


def captured(model: nn.Module) -> Graph:
    return capture(model, nn.MSELoss(), (torch.randn(2, 6), torch.randn(2, 6)))


def factor_of(graph: Graph) -> float | None:
    """What the model has decided on; None where it stays whole."""
    if any(isinstance(call, ModuleCall) for call in graph.calls.values()):
        return None
    (node,) = (node for node in graph if node.op == "aten.mul.Tensor")
    factor: float = node.args[1]
    return factor


def written_in_place(x: Tensor) -> Tensor:
    return torch.full((6, 6), INF).triu_(1)


def row_by_row(x: Tensor) -> Tensor:
    mask = torch.zeros(6, 6)
    for i in range(6):
        row = mask[i]
        row[i + 1 :] = INF
    return mask


@pytest.mark.parametrize("mask", [written_in_place, row_by_row])
def test_a_mask_made_of_literals_is_known(mask: Callable[[Tensor], Tensor]) -> None:
    assert factor_of(captured(Decides(mask))) == 3


def one_too_many(x: Tensor) -> Tensor:
    mask = row_by_row(x)
    mask[5][0] = INF
    return mask


def test_a_write_through_a_view_counts() -> None:
    assert factor_of(captured(Decides(one_too_many))) == 2


def of_the_batch(x: Tensor) -> Tensor:
    mask = torch.zeros(6, 6)
    mask[0] = x[0]
    return mask


def drawn(x: Tensor) -> Tensor:
    return torch.bernoulli(torch.full((6, 6), 0.5))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("mask", [of_the_batch, drawn])
def test_what_depends_on_the_batch_or_a_draw_is_not_known(mask: Callable[[Tensor], Tensor]) -> None:
    assert factor_of(captured(Decides(mask))) is None


def test_an_attribute_that_the_forward_writes_is_not_known() -> None:
    def counted(x: Tensor) -> Tensor:
        view = model.one[:]
        view += 1
        return model.one

    model = Decides(counted)
    assert factor_of(captured(model)) is None
    assert torch.equal(model.one, torch.ones(6, 6))


def test_layers_of_an_encoder_are_operators_beside_a_causal_mask() -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.encoder(x, nn.Transformer.generate_square_subsequent_mask(x.shape[1]))
            return out

    batch = (torch.randn(2, 5, 8), torch.randn(2, 5, 8))
    assert not capture(Language(), nn.MSELoss(), batch).calls
