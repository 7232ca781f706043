"""Moving tensors between devices: inside one process, or between processes."""

from __future__ import annotations

import queue
import threading
import time
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

__all__ = ["Handle", "LocalTransport", "ProcessTransport", "Transport", "TransportLost", "TransportTimeout"]


_FOREVER_S = 7 * 24 * 3600.0  # a watcher's own limit; who needs the send to be over waits less


class TransportTimeout(Exception):
    """A transfer was not finished in time."""


class TransportLost(Exception):
    """The other end of a transfer is gone."""


class Handle(Protocol):
    """A transfer under way."""

    def wait(self, timeout_s: float) -> torch.Tensor:
        """The tensor, once it is there; raises `TransportTimeout` or `TransportLost`."""

    def done(self) -> bool: ...

    @property
    def ended_s(self) -> float | None:
        """When it ended, on ``time.perf_counter``; None where nobody looked at that moment."""


class Transport(Protocol):
    """Sends and receives that return at once. A tag is used once at a time between two devices."""

    def send(self, tensor: torch.Tensor, peer: str, tag: int) -> Handle: ...

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, peer: str, tag: int) -> Handle: ...


class LocalTransport:
    """All devices in one process: a send moves to the receiving device, a receive finds it there.

    Between devices that are the same to torch the tensor itself is handed over; nobody writes into it.
    """

    def __init__(self, torch_device: dict[str, torch.device]) -> None:
        self.torch_device = torch_device
        self.parcels: dict[int, torch.Tensor] = {}

    def send(self, tensor: torch.Tensor, peer: str, tag: int) -> Handle:
        self.parcels[tag] = tensor.to(self.torch_device[peer], non_blocking=True)
        return _Parcel(self, None)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, peer: str, tag: int) -> Handle:
        return _Parcel(self, tag)


class _Parcel:
    def __init__(self, transport: LocalTransport, tag: int | None) -> None:
        self.transport = transport
        self.tag = tag

    def wait(self, timeout_s: float) -> torch.Tensor:
        if self.tag is None:
            return torch.empty(0)
        return self.transport.parcels.pop(self.tag)

    def done(self) -> bool:
        return self.tag is None or self.tag in self.transport.parcels

    @property
    def ended_s(self) -> float | None:
        return None


class ProcessTransport:
    """One process per device, joined by ``torch.distributed`` (gloo, or NCCL between CUDA devices)."""

    def __init__(self, rank_of: dict[str, int], device: torch.device) -> None:
        self.rank_of = rank_of
        self.device = device
        self.watchers: dict[str, _Watcher] = {}

    def send(self, tensor: torch.Tensor, peer: str, tag: int) -> Handle:
        tensor = tensor.contiguous()
        work = dist.isend(tensor, self.rank_of[peer], tag=tag)
        assert work is not None
        if self.device.type != "cpu":
            return _Work(work, tensor)
        if peer not in self.watchers:
            self.watchers[peer] = _Watcher()
        return self.watchers[peer].watch(_Work(work, tensor))

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, peer: str, tag: int) -> Handle:
        tensor = torch.empty(shape, dtype=dtype, device=self.device)
        work = dist.irecv(tensor, self.rank_of[peer], tag=tag)
        assert work is not None
        return _Work(work, tensor)


class _Work:
    def __init__(self, work: dist.Work, tensor: torch.Tensor) -> None:
        self.work = work
        self.tensor = tensor

    def wait(self, timeout_s: float) -> torch.Tensor:
        try:
            self.work.wait(timedelta(seconds=timeout_s))
        except RuntimeError as error:
            timed_out = "timed out" in str(error).lower() or "timeout" in str(error).lower()
            raise (TransportTimeout if timed_out else TransportLost)(str(error)) from error
        return self.tensor

    def done(self) -> bool:
        return self.work.is_completed()

    @property
    def ended_s(self) -> float | None:
        return None


class _Watched:
    """A gloo send, waited for by a watcher: gloo itself says nothing before somebody waits."""

    def __init__(self, work: _Work) -> None:
        self.work: _Work | None = work
        self.over = threading.Event()
        self.error: Exception | None = None
        self.ended_s: float | None = None

    def wait(self, timeout_s: float) -> torch.Tensor:
        if not self.over.wait(timeout_s):
            raise TransportTimeout(f"not sent within {timeout_s:g} s")
        if self.error is not None:
            raise self.error
        return torch.empty(0)

    def done(self) -> bool:
        return self.over.is_set() and self.error is None


class _Watcher:
    """Waits for the sends to one peer, which end in the order they began."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[_Watched] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def watch(self, work: _Work) -> _Watched:
        watched = _Watched(work)
        self.queue.put(watched)
        return watched

    def _run(self) -> None:
        while True:
            watched = self.queue.get()
            assert watched.work is not None
            try:
                watched.work.wait(_FOREVER_S)
            except (TransportTimeout, TransportLost) as error:
                watched.error = error
            watched.ended_s = time.perf_counter()
            watched.work = None  # lets the tensor go
            watched.over.set()
