"""Seconds of short pieces of work: of a step, beside messages, of one that is always the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil, prod
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from netsplit.cluster.probe import Mover
from netsplit.graph.ir import Graph, Initializer, Node, Variable
from netsplit.optim.optimizers import OptimizerFactory, make_optimizer
from netsplit.profile.costs import HOST_S_PER_BYTE

__all__ = [
    "Clock", "Lap", "accumulate_seconds_per_byte", "copy_seconds_per_byte", "engine_call_seconds",
    "host_seconds_per_byte", "reference_seconds", "step_seconds_per_byte",
    "trivial_step", "worker_conditions",
]  # fmt: skip

CHAIN = 64  # trivial nodes whose backward tells the engine's cost per node

HOST_BYTES = 2**26  # copied to the host and back, to time that

SMALL, LARGE = 64, 2**20  # bytes
COMPUTE_S = 6e-3  # of a computation, in pieces
PIECES = 4  # before each of which a message starts either way; longer than a large one is on its way
WAIT_S = 60.0
SCRATCH_BYTES = 2**26  # gone over before a step, which finds the caches full of a backward's data
STEPS, WARM_UP = 5, 2  # of an optimiser, and those before them that do not count
MOST_BYTES = 2**27  # of parameters that are stepped on
ROUNDS = 15  # of messages; the first do not count

Lap = tuple[Any, Any]  # start and end, as the clock marks them
Shapes = Mapping[str, tuple[int, ...]]  # of parameters, by name


class Clock:
    """Marks moments and tells the seconds between them.

    A CPU thread is timed by its own processor time, so that a busy machine does not count; a CUDA device by
    events in its stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.now: Callable[[], Any] = self._event if device.type == "cuda" else time.thread_time

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, laps: list[Lap]) -> list[float]:
        if self.device.type != "cuda":
            return [end - start for start, end in laps]
        torch.cuda.synchronize(self.device)
        return [start.elapsed_time(end) / 1e3 for start, end in laps]


@contextmanager
def worker_conditions(device: torch.device) -> Iterator[None]:
    """One thread, as a worker has, and seeded random numbers; both are put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            yield
    finally:
        torch.set_num_threads(before)


def engine_call_seconds(clock: Clock) -> float:
    """What one call of the autograd engine costs beyond the nodes that it runs: the time for one trivial
    node, less the cost per node in a chain of them."""

    def of_chain(length: int) -> float:
        leaf = torch.ones(1, device=clock.device, requires_grad=True)
        one = torch.ones(1, device=clock.device)
        laps = []
        for _ in range(40):
            output = leaf
            for _ in range(length):
                output = output.view(1)
            start = clock.now()
            torch.autograd.grad([output], [leaf], [one])
            laps.append((start, clock.now()))
        return median(clock.seconds(laps)[10:])

    short, long = of_chain(1), of_chain(1 + CHAIN)
    return max(short - (long - short) / CHAIN, 0.0)


def host_seconds_per_byte(device: torch.device) -> float:
    """Measured between a CUDA device and pinned host memory, the mean of both ways; else the default."""
    if device.type != "cuda":
        return HOST_S_PER_BYTE
    clock = Clock(device)
    on_device = torch.empty(HOST_BYTES, dtype=torch.uint8, device=device)
    on_host = torch.empty(HOST_BYTES, dtype=torch.uint8, pin_memory=True)
    laps: list[Lap] = []
    for _ in range(6):
        start = clock.now()
        on_host.copy_(on_device, non_blocking=True)
        on_device.copy_(on_host, non_blocking=True)
        laps.append((start, clock.now()))
    return median(clock.seconds(laps)[1:]) / (2 * HOST_BYTES)


def reference_seconds(torch_device: torch.device | str) -> float:
    """Median seconds of a fixed mix of operators, about 5 ms on a processor of today."""
    device = torch.device(torch_device)
    clock, laps = Clock(device), []
    with worker_conditions(device), torch.no_grad():
        images, kernel = torch.rand(8, 16, 32, 32, device=device), torch.rand(16, 16, 3, 3, device=device)
        square, small = torch.rand(256, 256, device=device), torch.rand(64, device=device)
        long = torch.rand(2**20, device=device)
        for _ in range(18):
            start = clock.now()
            functional.conv2d(images, kernel, padding=1)
            square @ square
            long.mul_(1.0).add_(0.0)
            for _ in range(100):
                small = small.relu()
            laps.append((start, clock.now()))
    return median(clock.seconds(laps)[3:])


def step_seconds_per_byte(
    factory: OptimizerFactory, shapes: Shapes, torch_device: torch.device | str
) -> float:
    """Measured seconds per byte of parameter of a step and of freeing the gradients; 0 without parameters.

    Args:
        shapes: of the model's trainable parameters; float32. They are measured together, as small ones cost
            more per byte; above `MOST_BYTES` every n-th is taken.
        torch_device: where to run, as for `torch.device`.
    """
    if not (chosen := _sampled(shapes)):
        return 0.0
    device = torch.device(torch_device)
    clock = Clock(device)
    laps: list[Lap] = []
    with worker_conditions(device):
        own = {name: nn.Parameter(torch.rand(shape, device=device)) for name, shape in chosen.items()}
        parameters, optimizer = list(own.values()), make_optimizer(factory, own).optimizer
        scratch = torch.ones(SCRATCH_BYTES // 4, device=device)
        for _ in range(WARM_UP + STEPS):
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, 1e-3)
            scratch.mul_(1.0)
            start = clock.now()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            laps.append((start, clock.now()))
    return median(clock.seconds(laps)[WARM_UP:]) / sum(4 * p.numel() for p in parameters)


def accumulate_seconds_per_byte(shapes: Shapes, torch_device: torch.device | str) -> float:
    """Measured seconds per byte of parameter of adding a new gradient to the sum of earlier ones; arguments
    as of `step_seconds_per_byte`."""
    if not (chosen := _sampled(shapes)):
        return 0.0
    device = torch.device(torch_device)
    clock = Clock(device)
    totals = []
    with worker_conditions(device):
        sums = [torch.zeros(shape, device=device) for shape in chosen.values()]
        for _ in range(1 + STEPS):
            laps: list[Lap] = []
            for total in sums:
                gradient = torch.ones_like(total)
                start = clock.now()
                total += gradient
                laps.append((start, clock.now()))
            totals.append(sum(clock.seconds(laps)))
    return median(totals[1:]) / sum(4 * total.numel() for total in sums)


def _sampled(shapes: Shapes) -> Shapes:
    every = max(1, ceil(sum(4 * prod(shape) for shape in shapes.values()) / MOST_BYTES))
    return {name: shape for name, shape in list(shapes.items())[::every] if prod(shape)}


def copy_seconds_per_byte(mover: Mover, peer: str, barrier: Callable[[], None]) -> float:
    """What copying a message's bytes takes from computations of its two ends, while both compute.

    To be called by two workers at once; each gets what it measured itself: the median of differences within a
    round, so that changes of the machine's speed cancel.
    """
    work = _CopyWork()
    small, large = (torch.zeros(n, dtype=torch.uint8) for n in (SMALL, LARGE))
    copying = []
    for _ in range(ROUNDS):
        barrier()
        small_s = _busy(mover, peer, small, work)
        barrier()
        large_s = _busy(mover, peer, large, work)
        copying.append((large_s - small_s) / (2 * PIECES * LARGE))
    return max(median(copying[ROUNDS // 5 :]), 0.0)


class _CopyWork:
    """A computation of many small operators, as long as `COMPUTE_S`."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.values = [torch.randn(64, 64, generator=generator) for _ in range(16)]
        self.count = 16
        for _ in range(3):
            self.count = max(int(self.count * COMPUTE_S / self.seconds()), 4)

    def seconds(self, before: Callable[[], object] | None = None) -> float:
        """Wall seconds of the computation, with `before` called before each of its pieces."""
        start = time.perf_counter()
        total = self.values[0]
        for _ in range(PIECES):
            if before is not None:
                before()
            for k in range(self.count // PIECES):
                total = torch.tanh(self.values[k % 16] @ total)
        return time.perf_counter() - start


def _busy(mover: Mover, peer: str, tensor: Tensor, work: _CopyWork) -> float:
    """Seconds of a computation during which messages go both ways, with starting them."""
    waits: list[Callable[[float], object]] = []

    def start() -> None:
        tag = len(waits)
        waits.append(mover.receive(torch.empty_like(tensor), peer, tag).wait)
        waits.append(mover.send(tensor, peer, tag, tensor.nbytes > SMALL).wait)

    work.seconds()  # from the barrier on the caches are cold
    seconds = work.seconds(start)
    for wait in waits:
        wait(WAIT_S)
    return seconds


def trivial_step() -> Graph:
    """A training step of one number times one parameter: what it costs to run is all overhead."""
    return Graph(
        nodes={
            "mul": Node("mul", "aten.mul.Tensor", ("x",), ("y",), ("w",), args=({"var": "x"}, {"init": "w"}))
        },
        variables={
            "x": Variable("x", "float32", (1,), None, ("mul",)),
            "y": Variable("y", "float32", (1,), "mul", (), requires_grad=True),
        },
        input_variables=("x",),
        output_variables=("y",),
        initializers={"w": Initializer("w", "float32", (1,), is_parameter=True, requires_grad=True)},
    )
