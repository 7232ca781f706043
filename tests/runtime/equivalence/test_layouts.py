"""What goes by how a tensor lies in memory, on a device that has it from another: views, copies, elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.graph import capture
from netsplit.graph.analyse import memory_order
from netsplit.graph.ir import Variable
from netsplit.program import GPipe, Schedule
from netsplit.program.schedules import ZBH1
from netsplit.runtime.transport.handle import LocalTransport, Ordered, dense
from tests.nets import SGD, Case
from tests.runtime.equivalence.running import PATIENT, assert_same, batches_of, compiled, local
from tests.runtime.references import plain_loop


def _strided(t: Tensor) -> Tensor:
    return (2 * t).as_strided((len(t), 12), (12, 1))


def _viewed(t: Tensor) -> Tensor:
    return (2 * t).transpose(1, 2).view(len(t), 12)


def _view_written(t: Tensor) -> Tensor:
    doubled = 2 * t
    doubled.transpose(1, 2).reshape(len(t), 12).mul_(0.5)
    return doubled.flatten(1)


def _conjugate(t: Tensor) -> Tensor:
    lazy = torch.view_as_complex(t.reshape(len(t), 6, 2)).conj()
    copy = lazy.resolve_conj()
    copy.mul_(0.5)
    return torch.view_as_real((lazy + 3 * copy).resolve_conj()).flatten(1)


def _channels_last(t: Tensor) -> Tensor:
    pictures = t.reshape(len(t), 3, 2, 2).contiguous(memory_format=torch.channels_last)
    blurred = F.avg_pool2d(pictures, 3, stride=1, padding=1).relu()
    return blurred.permute(0, 2, 3, 1).view(len(t), -1)


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    each.__name__: each for each in (_strided, _viewed, _view_written, _conjugate, _channels_last)
}


class _Turned(nn.Module):
    def __init__(self, by: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.by, self.inward, self.head = by, nn.Linear(6, 12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.by(self.inward(x).view(len(x), 3, 4).transpose(1, 2)))


@pytest.mark.parametrize("by", WAYS)
def test_operators_that_go_by_the_layout_do_on_any_device_what_they_do_on_one(by: str) -> None:
    inputs, targets = (torch.randn(8, 6, dtype=torch.float64),), torch.arange(8) % 5
    case = Case(by, partial(_Turned, WAYS[by]), inputs, targets)
    graph = capture(case.fresh(), case.loss, case.another(0, 2))
    names = list(graph.nodes)
    behind = dict.fromkeys(names, "cpu:0") | dict.fromkeys(names[names.index("transpose") + 1 :], "cpu:1")
    in_turn = {name: f"cpu:{i % 2}" for i, name in enumerate(names)}
    wanted = plain_loop(case.fresh(), case.loss, batches_of(case), 2, SGD)
    schedules: tuple[Schedule, ...] = (GPipe(4), ZBH1(4, recompute=True))
    for placed, schedule in zip((behind, in_turn), schedules, strict=True):
        for group in graph.colocated:
            placed.update(dict.fromkeys(group, placed[group[-1]]))
        program = compiled(graph, placed, 2, schedule)
        assert_same(local(program, case, batches_of(case)), wanted)


@st.composite
def _laid_out(draw: st.DrawFn) -> Tensor:
    """A tensor with its dimensions in any order, cut or repeated."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    tensor = torch.randn([n + 1 for n in sizes])
    if draw(st.booleans()):
        tensor = tensor[tuple(slice(0, n) for n in sizes)]
    if draw(st.booleans()):
        tensor = tensor[..., None].expand(*tensor.shape, 2)
    return tensor.permute(draw(st.permutations(range(tensor.dim()))))


@PATIENT
@given(_laid_out())
def test_what_is_sent_lies_as_a_copy_of_it_does(tensor: Tensor) -> None:
    order = memory_order(tensor.shape, tensor.stride())
    variable = Variable("x", "float32", tuple(tensor.shape), None, (), order=order)
    transport = LocalTransport({"q": torch.device("cpu")})
    buffer = torch.empty_strided(variable.shape, variable.strides)
    transport.send(dense(tensor, order).clone(memory_format=torch.contiguous_format), "q", 0, False)
    handle = transport.receive(dense(buffer, order), "p", 0)
    came = (Ordered(handle, order) if order else handle).wait(1.0)
    assert torch.equal(came, tensor)
    if tensor.numel():
        assert (
            _steps(came.stride(), tensor)
            == _steps(variable.strides, tensor)
            == _steps(tensor.clone().stride(), tensor)
        )


def _steps(strides: Sequence[int], tensor: Tensor) -> list[int]:
    """Those that mean something."""
    return [step for step, size in zip(strides, tensor.shape, strict=True) if size > 1]
