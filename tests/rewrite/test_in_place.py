"""In-place operators in parts: as their out-of-place twins, where nobody can tell one from the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from netsplit.errors import RewriteError
from netsplit.graph import capture
from netsplit.partition.common.homes import devices_of_nodes
from netsplit.program import GPipe
from netsplit.program.other_batches import with_tail
from netsplit.rewrite import ReadWeights, Split, along_samples, applied, split_axes
from netsplit.rewrite.in_place import out_of_place
from tests.nets import SGD, Case
from tests.rewrite.models import split_operator
from tests.runtime.equivalence.running import assert_same, compiled, local
from tests.runtime.references import plain_loop


class _Residual(nn.Module):
    """Blocks whose activation and residual sum are in place: of convolutions, or of linear layers."""

    def __init__(self, image: bool) -> None:
        super().__init__()
        self.inward = nn.Conv2d(3, 8, 3) if image else nn.Linear(12, 8)
        self.one, self.two = (nn.Conv2d(8, 8, 3, padding=1) if image else nn.Linear(8, 8) for _ in range(2))
        self.norm, self.after = (nn.BatchNorm2d(8) if image else nn.LayerNorm(8) for _ in range(2))
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(self.inward(x))
        y = self.after(self.two(self.relu(self.norm(self.one(x)))))
        y += x
        y = self.relu(y)
        return self.head(y.flatten(2).mean(2) if y.dim() > 2 else y)


@pytest.mark.parametrize("along", ["samples", "columns"])
@pytest.mark.parametrize("shape", [(3, 6, 6), (12,)], ids=["convolutions", "linear layers"])
def test_residual_blocks_train_in_parts(shape: tuple[int, ...], along: str) -> None:
    """In parts nothing is in place any more; whole, all stays so. The last micro-batch is smaller."""
    inputs = (torch.zeros(8, *shape, dtype=torch.float64),)
    case = Case("", lambda: _Residual(len(shape) > 1), inputs, torch.arange(8) % 5)
    graph, rest = (capture(case.fresh(), case.loss, case.another(0, size)) for size in (4, 3))
    cut = along_samples(graph, 2)
    if along == "columns":
        axes = {node.name: split_axes(graph, node.name).get(1) for node in graph}
        cut = tuple(Split(name, 1, (n // 2, n - n // 2)) for name, n in axes.items() if n)
    written = {node.name for node in graph if node.kind.endswith("_") and node.inputs}
    assert len(written) == 4
    assert written <= {each.node for each in cut}
    parts = applied(graph, cut)
    assert not [node for node in parts if node.kind.endswith("_") and node.inputs]
    whole = applied(graph, (ReadWeights("linear"),))
    assert {name: whole.nodes[name] for name in written} == {name: graph.nodes[name] for name in written}
    program = compiled(parts, devices_of_nodes(parts, ("cpu:0", "cpu:1")), 2, GPipe(2))
    batches = [case.another(seed, 7) for seed in range(2)]
    wanted = plain_loop(case.fresh(), case.loss, batches, 4, SGD)
    program = with_tail(program, parts, applied(rest, cut, parts))
    assert_same(local(program, case, batches), wanted, 1e-12)


class _Other(nn.Module):
    seen: Tensor

    def __init__(self, forward: Callable[[_Other, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.own = nn.Linear(12, 5), forward
        self.register_buffer("seen", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self, x)


def _view(model: _Other, x: Tensor) -> Tensor:
    y = model.linear(x)
    flat = y.view(-1)
    return y.relu_() + flat.view(-1, 5)


def _unseen(model: _Other, x: Tensor) -> Tensor:
    y = model.linear(x)
    with torch.no_grad():
        y.relu_()
    return 2 * y


REFUSED: dict[str, Callable[[_Other, Tensor], Tensor]] = {
    "a view reads it": _view,
    "a buffer": lambda m, x: m.linear(x) + m.seen.add_(1.0),
    "a part": lambda m, x: m.linear(x).narrow(1, 0, 3).relu_(),
    "an input": lambda m, x: m.linear(x.relu_()),
    "no_grad": _unseen,
    "checkpoint": lambda m, x: checkpoint(lambda y: m.linear(y).relu_(), x, use_reentrant=False),
    "random": lambda m, x: F.dropout(m.linear(x), inplace=True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_others_see_stays_in_place(name: str) -> None:
    x = torch.randn(8, 12)
    graph = capture(_Other(REFUSED[name]), nn.CrossEntropyLoss(), (x, torch.arange(8) % 3))
    write = next(node for node in graph if node.kind in ("relu_", "add_", "dropout_", "dropout"))
    assert out_of_place(graph).nodes[write.name].op == write.op
    assert split_axes(graph, write.name) == {}
    with pytest.raises(RewriteError, match=r"in one piece|writes in place|activation checkpoint|random"):
        split_operator(graph, write.name, 0, 2)
