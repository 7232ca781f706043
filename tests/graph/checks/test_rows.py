"""A batch is predicted in micro-batches only where the outputs of a sample depend on no other."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.graph.batches.batch import Batch
from netsplit.training.captures import Captures
from netsplit.training.options import Training

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def __init__(self, output: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.gate = nn.Parameter(torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))
        self.output = output

    def forward(self, x: Tensor) -> Any:
        return self.output(self, self.layer(x))


def normed(net: Any, y: Tensor) -> Any:
    return {"y": net.norm(y), "twice": torch.cat([y, y], 1).T, "pairs": y.reshape(-1, 2)}


def above(net: Any, y: Tensor) -> Tensor:
    return y + y[y > 0].mean()


def gated(net: Any, y: Tensor) -> Tensor:
    return y + net.gate * y.mean(0)


def dropped(net: Any, y: Tensor) -> Tensor:
    return F.dropout(y, 0.3, training=True)


def counted(net: Any, y: Tensor) -> Tensor:
    net.seen += len(y)
    return y


def compared(net: Any, y: Tensor) -> Tensor:
    return y @ y.T


def numbered(net: Any, y: Tensor) -> Any:
    return y, len(y)


def dims(output: Callable[[Any, Tensor], Any], check: bool = True) -> Any:
    captures = Captures(Net(output), None, Training(check=check), trained=dict)
    return captures.output_dims(Batch.of(X), 2)


def test_rows_of_samples_alone_are_joined_along_their_dimension() -> None:
    assert dims(normed) == (0, 1, 0)


@pytest.mark.parametrize(
    ("output", "why"),
    {
        above: "stays whole",
        gated: "depends on the other samples",
        dropped: "draws",
        counted: "writes 'seen'",
        compared: "(4, 4) has no row",
        numbered: "other numbers",
    }.items(),
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_any_other_batch_is_predicted_whole_and_the_log_says_why(
    output: Callable[[Any, Tensor], Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="netsplit"):
        assert dims(output) is None
    assert why in caplog.messages[-1]
    assert dims(output, check=False) is None
