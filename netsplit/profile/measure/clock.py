"""Seconds of short pieces of work, on a processor or on a CUDA device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch.nn import functional

from netsplit.profile.costs import HOST_S_PER_BYTE

__all__ = [
    "Clock",
    "Lap",
    "engine_call_seconds",
    "host_seconds_per_byte",
    "reference_seconds",
    "worker_conditions",
]

CHAIN = 64  # trivial nodes whose backward tells the engine's cost per node

HOST_BYTES = 2**26  # copied to the host and back, to time that

Lap = tuple[Any, Any]  # start and end, as the clock marks them


class Clock:
    """Marks moments and tells the seconds between them.

    A processor's thread is timed by the processor time it gets, so that a busy machine does not count as
    work; a CUDA device by events in its stream.
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
    """One thread, as a worker has; random numbers of our own, with the process's left as they were."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            yield
    finally:
        torch.set_num_threads(before)


def engine_call_seconds(clock: Clock) -> float:
    """What one call of the autograd engine costs beyond the nodes that it runs.

    Backward through a chain of trivial nodes gives the cost of a node; the rest of a call through one
    node is the call's own.
    """

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
    """Measured between a CUDA device and pinned memory of its host, the mean of both ways; or the default."""
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
    """Median seconds of a convolution, a matrix product, passes over memory and small operators.

    About 5 ms on a processor of today.
    """
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
