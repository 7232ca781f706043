"""The meter counts every storage once, from when it appears until nothing holds it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from netsplit.profile.measure.memory_meter import MemoryMeter
from netsplit.program import Program
from netsplit.runtime.feeds import split_batch
from netsplit.runtime.local import LocalRuntime

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


def test_backward_is_seen() -> None:
    """Autograd runs CPU operators in the calling thread: the gradient, and the operand it multiplies."""
    weight = kib(8).requires_grad_()
    with MemoryMeter(CPU, [weight]) as meter:
        made = weight * weight
        ahead = meter.peak_bytes
        made.backward(torch.ones_like(made))
    assert ahead == 16 * KIB
    assert meter.peak_bytes >= 8 * 4 * KIB  # weight, product, its gradient, weight's gradient


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: asks its allocator")
def test_on_a_gpu_the_allocator_is_asked() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    before = torch.cuda.memory_allocated(device)
    with MemoryMeter(device) as meter:
        made = torch.ones(2**20, device=device) + 1
    assert meter.peak_bytes >= before + 2 * 4 * 2**20
    assert len(made) == 2**20
