"""Values that are named as Python's own functions, and metrics that look into what a step changes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from netsplit.graph import capture, initial_values
from netsplit.graph.ir import CALL
from netsplit.program import GPipe, Program, Schedule
from netsplit.program.schedules import OneFOneB
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.local import LocalRuntime
from tests.builders import cpus
from tests.nets import SGD, Case
from tests.runtime.equivalence.running import assert_same, batches_of, compiled, local
from tests.runtime.references import Trained, plain_loop


class _Sums(nn.Module):
    """Its operators are `sum` and `sum_1`: a builtin, and what fx makes of that."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(6, 10)
        self.elsewhere = nn.Linear(1, 10)
        self.head = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inward(x)
        one, other = x.sum(1, keepdim=True), (x * x).sum(1, keepdim=True)
        return self.head(self.elsewhere(one + other) + one - 3 * other)


SUMS = Case("sums", _Sums, (torch.randn(8, 6, dtype=torch.float64),), torch.arange(8) % 5)


@pytest.mark.parametrize("recompute", [False, True])
def test_values_named_as_builtins_are_not_taken_for_one_another(recompute: bool) -> None:
    graph = capture(SUMS.fresh(), SUMS.loss, SUMS.another(0, 2))
    device_of = dict.fromkeys(graph.nodes, "cpu:0") | {"linear_1": "cpu:1"}
    program = compiled(graph, device_of, 2, GPipe(4, recompute=recompute))
    assert any({"sum", "sum_1"} <= set(segment.inputs) for segment in program.segments)
    wanted = plain_loop(SUMS.fresh(), SUMS.loss, batches_of(SUMS), 2, SGD)
    assert_same(local(program, SUMS, batches_of(SUMS)), wanted)


class _Piece(nn.Module):
    """Python that stays whole, as it goes by a value; it copies by the layout and writes."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum().item() > 1e9:
            return x
        copy = x.contiguous()
        copy.mul_(0.5)
        return x + 3 * copy


class _InOnePiece(nn.Module):
    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.cut, self.inward, self.piece, self.head = cut, nn.Linear(6, 12), _Piece(), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inward(x).view(len(x), 3, 4)
        x = torch.cat([x, x], 1)[:, 1:4] if self.cut else x.transpose(1, 2)
        return self.head(self.piece(x).flatten(1))


@pytest.mark.parametrize("cut", [False, True], ids=["turned", "cut"])
def test_python_that_stays_whole_is_given_what_lies_as_it_did(cut: bool) -> None:
    case = Case("piece", partial(_InOnePiece, cut), SUMS.inputs, SUMS.targets)
    graph = capture(case.fresh(), case.loss, case.another(0, 2))
    piece = next(name for name, node in graph.nodes.items() if node.op.startswith(CALL))
    names = list(graph.nodes)
    device_of = dict.fromkeys(names, "cpu:0") | dict.fromkeys(names[names.index(piece) :], "cpu:1")
    program = compiled(graph, device_of, 2, GPipe(4))
    wanted = plain_loop(case.fresh(), case.loss, batches_of(case), 2, SGD)
    assert_same(local(program, case, batches_of(case)), wanted)


class _Observed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.norm(self.inward(x))
        return x, self.inward.weight[0, 0], self.norm.running_mean[1], self.norm.num_batches_tracked


def _loss(outputs: tuple[Tensor, ...], targets: Tensor) -> tuple[Tensor, list[Tensor]]:
    return nn.functional.cross_entropy(outputs[0], targets), [t.detach() for t in outputs[1:]]


OBSERVED = Case("observed", _Observed, SUMS.inputs, SUMS.targets)


def _observed(runtime: LocalRuntime | DistributedRuntime) -> None:
    model = OBSERVED.fresh()
    batch = OBSERVED.another(0)
    runtime.train_batch(*batch)
    seen = []
    for x, t in zip(batch[0][0].split(2), batch[1].split(2), strict=True):
        seen.append([float(m) for m in _loss(model(x), t)[1]])
    wanted = [sum(each) / 4 for each in zip(*seen, strict=True)]
    assert runtime.metrics == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("schedule", [GPipe(4), OneFOneB(4)], ids=lambda each: each.name)
def test_metrics_are_those_of_the_forward(schedule: Schedule) -> None:
    """Views of a parameter, which the step moves, and of buffers, which micro-batches write in turn."""
    graph = capture(OBSERVED.fresh(), _loss, OBSERVED.another(0, 2))
    program = compiled(graph, dict.fromkeys(graph.nodes, "cpu:0"), 2, schedule)
    _observed(LocalRuntime(program, cpus(2), initial_values(OBSERVED.fresh(), graph), SGD))


class _Shifted(nn.Module):
    """The gradient of the sum's result is that of both its terms, seen through views."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.shift = nn.Parameter(torch.randn(2, 3))
        self.after = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.before(x).view(6) + self.shift.view(6)).view(1, 5)


CASE = Case("shifted", _Shifted, (torch.randn(8, 6, dtype=torch.float64),), torch.arange(8) % 5)


def _program(schedule: Schedule) -> Program:
    graph = capture(CASE.fresh(), CASE.loss, CASE.another(0, 1))
    second = graph.position["view"]
    return compiled(graph, {k: f"cpu:{int(i >= second)}" for k, i in graph.position.items()}, 2, schedule)


def _plain() -> Trained:
    return plain_loop(CASE.fresh(), CASE.loss, batches_of(CASE), 1, SGD)


def test_a_gradient_that_waits_is_left_as_it_is() -> None:
    assert_same(local(_program(GPipe(8)), CASE, batches_of(CASE)), _plain())
