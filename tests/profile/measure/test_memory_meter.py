"""The meter counts every storage once, from when it appears until nothing holds it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from netsplit.graph import capture, initial_values
from netsplit.profile.measure.memory_meter import MemoryMeter
from netsplit.program import GPipe, Program, Schedule, SingleBatch, compile_program
from netsplit.runtime.feeds import split_batch
from netsplit.runtime.local import LocalRuntime
from tests.builders import cpus
from tests.nets import CASES, SGD

CPU = torch.device("cpu")
KIB = 1024


class CopyingTransport:
    """Moves tensors as processes do: into a buffer of the receiver's own, as soon as both ends are there."""

    def __init__(self) -> None:
        self.parcels: dict[int, Tensor] = {}
        self.buffers: dict[int, Tensor] = {}
        self.terms: dict[int, list[Tensor]] = {}

    def send(self, tensor: Tensor, peer: str, tag: int, watched: bool) -> _Handle:
        self.parcels[tag] = tensor
        self._move(tag)
        return _Handle(self.parcels, tag, tensor)

    def receive(self, buffer: Tensor, peer: str, tag: int, watched: bool = False) -> _Handle:
        self.buffers[tag] = buffer
        self._move(tag)
        return _Handle(self.buffers, tag, buffer)

    def proceed(self) -> None:
        """What can move has moved."""

    def reduce(self, tensor: Tensor, devices: tuple[str, ...], tag: int) -> _Sum:
        terms = self.terms.setdefault(tag, [])
        with _disable_current_modes():
            terms.append(tensor.clone())
        return _Sum(terms, tensor)

    def _move(self, tag: int) -> None:
        if tag in self.parcels and tag in self.buffers:
            with _disable_current_modes():
                self.buffers.pop(tag).copy_(self.parcels.pop(tag))


class _Handle:
    ended_s = 0.0

    def __init__(self, there: dict[int, Tensor], tag: int, tensor: Tensor | None = None) -> None:
        self.there, self.tag, self.tensor = there, tag, tensor

    def wait(self, timeout_s: float) -> Tensor:
        return torch.empty(0) if self.tensor is None else self.tensor

    def done(self) -> bool:
        return self.tag not in self.there


class _Sum:
    """In place, as torch.distributed has it."""

    ended_s = 0.0

    def __init__(self, terms: list[Tensor], own: Tensor) -> None:
        self.terms, self.own = terms, own

    def wait(self, timeout_s: float) -> Tensor:
        with _disable_current_modes():
            return self.own.copy_(torch.stack(self.terms).sum(0))

    def done(self) -> bool:
        return True


def metered_iteration(runtime: LocalRuntime, inputs: tuple[Tensor, ...], targets: Tensor) -> dict[str, int]:
    """Device -> peak bytes of one iteration, each executor under a meter of its own."""
    program: Program = runtime.program
    transport = CopyingTransport()
    feeds = split_batch(program, inputs, targets)
    meters = {}
    for name, executor in runtime.executors_of(program).items():
        executor.transport = transport
        own = [{k: feed[k].clone() for k in program.fed(name, i)} for i, feed in enumerate(feeds)]
        base = runtime.shares[name].all_tensors() + [t for feed in own for t in feed.values()]
        meters[name] = MemoryMeter(CPU, base, runtime.shares[name].host)
        with meters[name]:
            executor.begin(own)
    del own, base, feeds
    at = dict.fromkeys(program.devices, 0)
    for name in program.order:
        with meters[name]:
            runtime.executors_of(program)[name].execute(at[name])
        at[name] += 1
    for name, executor in runtime.executors_of(program).items():
        with meters[name]:
            executor.finish()
    return {name: meter.peak_bytes for name, meter in meters.items()}


def kib(count: int) -> Tensor:
    return torch.ones(count * KIB // 4)


def test_temporaries_count_while_they_live() -> None:
    with MemoryMeter(CPU) as meter:
        for _ in range(5):
            kept = kib(8) + 1
        kept = kept * 2
    assert meter.peak_bytes == 3 * 8 * KIB  # the last kept, the ones, their sum


def test_base_tensors_count_from_the_start() -> None:
    base = [kib(4), kib(2)]
    meter = MemoryMeter(CPU, [*base, base[0][:10]])
    assert meter.peak_bytes == 6 * KIB
    with meter:
        made = base[0] + 1
    assert meter.peak_bytes == 10 * KIB
    assert made is not None


def test_views_and_results_in_place_take_nothing() -> None:
    with MemoryMeter(CPU) as meter:
        made = kib(8)
        made.view(2, -1).add_(1)[0].relu_()
    assert meter.peak_bytes == 8 * KIB


def test_tensors_made_before_count_when_they_are_read() -> None:
    before = kib(8)
    with MemoryMeter(CPU) as meter:
        total = before.sum()
    assert meter.peak_bytes == 8 * KIB + total.nbytes


def test_a_storage_that_grows_counts_as_it_is() -> None:
    with MemoryMeter(CPU) as meter:
        made = torch.ones(4)
        made.resize_(KIB)
    assert meter.peak_bytes == 4 * KIB


def test_backward_is_seen() -> None:
    """Autograd runs CPU operators in the calling thread: the gradient, and the operand it multiplies."""
    weight = kib(8).requires_grad_()
    with MemoryMeter(CPU, [weight]) as meter:
        made = weight * weight
        ahead = meter.peak_bytes
        made.backward(torch.ones_like(made))
    assert ahead == 16 * KIB
    assert meter.peak_bytes >= 8 * 4 * KIB  # weight, product, its gradient, weight's gradient


@pytest.mark.parametrize("shared", [False, True])
def test_a_sum_of_gradients_counts_as_made_in_place_where_nobody_holds_its_first_term(shared: bool) -> None:
    """As autograd makes it while nobody watches."""
    weight = kib(8).requires_grad_()
    read = weight * 2
    hold: list[Tensor] = []
    total = torch.stack([read.exp(), read.sin(), read.cos()])
    if shared:
        total.grad_fn.next_functions[-1][0].register_hook(lambda grads, _: hold.extend(grads))  # type: ignore[union-attr]
    seed = torch.ones_like(total)
    with MemoryMeter(CPU, [weight, read, total, seed]) as meter:
        before = meter.peak_bytes
        total.backward(seed)
    held = meter.peak_bytes - before
    assert torch.equal(weight.grad, 2 * (read.exp() + read.cos() - read.sin()))  # type: ignore[arg-type]
    assert len(hold) == shared
    assert held == (4 if shared else 3) * 8 * KIB  # sum, or sum and first term; the next term; its factor


def test_what_autograd_saved_counts_until_backward() -> None:
    weight = kib(8).requires_grad_()
    with MemoryMeter(CPU, [weight]) as meter:
        total = (weight.exp() * 2).sum()
        one = kib(8)
        del one
        assert meter.peak_bytes == 24 * KIB + 4  # the exponential is still there when `one` is made
        total.backward()
        total = weight.grad = None  # type: ignore[assignment]
        before = meter.peak_bytes
        freed = [kib(8) for _ in range(2)]
    assert meter.peak_bytes == before
    assert len(freed) == 2


def test_a_meter_keeps_nothing_alive() -> None:
    with MemoryMeter(CPU) as meter:
        made = kib(8)
        gone = weakref.ref(made)
        del made
        gc.collect()
        assert gone() is None
        again = kib(8)
    assert meter.peak_bytes == 8 * KIB
    assert again is not None


def test_nothing_keeps_a_meter_alive() -> None:
    """Not the tensors it has seen either: a run with many metered iterations does not grow."""
    base = kib(8)
    meter = MemoryMeter(CPU, [base])
    with meter:
        base.add_(1)
    watch = weakref.ref(meter._watch)
    del meter
    gc.collect()
    assert watch() is None


def test_a_meter_entered_again_goes_on() -> None:
    """Two owners taking turns: each meter sees its own, and sees it go while it is not entered."""
    ours, theirs = MemoryMeter(CPU), MemoryMeter(CPU)
    with ours:
        first = kib(8)
    with theirs:
        other = kib(4)
    with ours:
        second = kib(2)
    assert (ours.peak_bytes, theirs.peak_bytes) == (10 * KIB, 4 * KIB)
    del first
    with ours:
        third = kib(8)
    assert (ours.peak_bytes, theirs.peak_bytes) == (10 * KIB, 4 * KIB)
    assert other is not second is not third


@pytest.mark.parametrize("schedule", [SingleBatch(), GPipe(4)], ids=["single_batch", "gpipe"])
def test_executors_in_one_process_are_told_apart(schedule: Schedule) -> None:
    """Each of two devices needs less than one that does all; together at least as much but for slack.

    The slack is the two devices' peaks at different moments: a transient gradient of one variable each.
    """
    case = CASES["cells"]
    graph = capture(case.fresh(), case.loss, case.batch(schedule.microbatch_size(8)))
    head = {name: group[0] for group in graph.colocated for name in group}
    peaks = []
    for share in (1.0, 0.5):
        early = {name: graph.position[head.get(name, name)] < share * len(graph) for name in graph.nodes}
        where = {name: "cpu:0" if first else "cpu:1" for name, first in early.items()}
        program = compile_program(graph, where, graph.position, cpus(2), schedule)
        runtime = LocalRuntime(program, cpus(2), initial_values(case.fresh(), graph), SGD)
        runtime.train_batch(case.inputs, case.targets)
        peaks.append(metered_iteration(runtime, case.inputs, case.targets))
    alone, split = peaks
    assert alone["cpu:1"] == 0
    assert 0 < max(split.values()) < alone["cpu:0"]
    largest = max(variable.nbytes for variable in graph.variables.values())
    assert sum(split.values()) >= alone["cpu:0"] - 2 * largest


def test_a_meter_leaves_when_its_body_fails() -> None:
    meter = MemoryMeter(CPU)
    with pytest.raises(ZeroDivisionError), meter:
        1 / 0  # noqa: B018
    made = kib(8)
    assert (meter.peak_bytes, len(made)) == (0, 2 * KIB)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: asks its allocator")
def test_on_a_gpu_the_allocator_is_asked() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    before = torch.cuda.memory_allocated(device)
    with MemoryMeter(device) as meter:
        made = torch.ones(2**20, device=device) + 1
    assert meter.peak_bytes >= before + 2 * 4 * 2**20
    assert len(made) == 2**20
