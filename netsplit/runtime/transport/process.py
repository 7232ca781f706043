"""Moving and adding tensors between processes.

NCCL moves tensors between CUDA devices; all else goes through CPU memory: by `neighbours` on one host, by
gloo between hosts or where processes may not read one another. The group of all processes uses gloo, so hosts
without GPUs can take part; only groups of GPUs use NCCL.

NCCL runs a pair's transfers in the order of the calls, so each direction has its own group: receives may then
be posted before sends the other way. A group connects at its first transfer and blocks until the other end
does, too: `connect` does that for every pair in one global order, so that no devices wait in a circle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from netsplit.program.instructions import Collective, Program, Send
from netsplit.runtime.transport.handle import (
    COMPILING_S,
    GatheredRows,
    Handle,
    Sum,
    TransportLost,
    TransportTimeout,
    moved,
)
from netsplit.runtime.transport.neighbours import Neighbours

__all__ = ["ProcessTransport", "group_timeout"]


_CARRIED = frozenset(
    (
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
        torch.int8, torch.uint8, torch.int32, torch.int64,
    )
)  # fmt: skip

_LOOK_S = 50e-6  # between looks at what a GPU waits for
_FOREVER_S = 7 * 24 * 3600.0  # a watcher's own limit; callers wait less
GROUP_MARGIN_S = 60.0
"""Groups time out this much later than devices, whose errors are clearer."""


def group_timeout(timeout_s: float) -> timedelta:
    """A group's timeout, longer than every wait that a device ends itself with a clear error."""
    return timedelta(seconds=max(timeout_s, COMPILING_S) + GROUP_MARGIN_S)


class ProcessTransport:
    """One process per device, joined by ``torch.distributed`` (see the module's text).

    Args:
        devices: device name -> its torch device, in rank order; `name` is this process's.
        timeout_s: longest wait for one transfer that the caller ends itself; groups give up later.
        in_order: both ends ask for what they exchange in one order: NCCL then needs no groups for it.
    """

    def __init__(
        self,
        devices: Mapping[str, torch.device],
        name: str,
        timeout_s: float = 60.0,
        neighbours: Neighbours | None = None,
        in_order: bool = False,
    ) -> None:
        self.neighbours = neighbours or Neighbours()
        self.in_order = in_order
        self.timeout = group_timeout(timeout_s)
        self.rank_of = {each: rank for rank, each in enumerate(devices)}
        self.devices = dict(devices)
        self.name = name
        self.device = devices[name]
        self.watchers: dict[tuple[str, bool], ThreadPoolExecutor] = {}  # by peer and direction; in order
        self.pairs: dict[tuple[str, str], dist.ProcessGroup] = {}
        self.groups: dict[tuple[str, ...], dist.ProcessGroup | None] = {}

    def prepare(self, programs: Iterable[Program]) -> None:
        """Create the programs' groups. All processes call this together, with the same programs."""
        for program in programs:
            self.connect(_links(program))
            for names in _sums(program):
                if names not in self.groups:
                    nccl = all(self.devices[name].type == "cuda" for name in names)
                    everyone = len(names) == len(self.devices) and not nccl
                    self.groups[names] = None if everyone else self._group(names, "nccl" if nccl else "gloo")
                    if nccl and self.name in names:
                        _asked(dist.all_reduce, self._first(), group=self.groups[names], async_op=True).wait()

    def connect(self, links: Iterable[tuple[str, str]]) -> None:
        """Create these links' groups. All processes call this together, with the same links."""
        for source, target in links:
            nccl = self.devices[source].type == self.devices[target].type == "cuda"
            if nccl and (source, target) not in self.pairs:
                group = self.pairs[source, target] = self._group((source, target), "nccl")
                if self.name in (source, target):
                    operation, peer = (dist.isend, target) if self.name == source else (dist.irecv, source)
                    _asked(operation, self._first(), self.rank_of[peer], group).wait()

    def send(self, tensor: torch.Tensor, peer: str, tag: int, watched: bool) -> Handle:
        group = self.pairs.get((self.name, peer))
        if group is not None or self._is_in_order(peer):
            parcel = _as_sent(tensor.contiguous())
            return _PendingWork(_asked(dist.isend, parcel, self.rank_of[peer], group), parcel)
        parcel = _as_sent(tensor.contiguous().cpu())
        if self.rank_of[peer] in self.neighbours:
            return self.neighbours.send(parcel, self.rank_of[peer], tag)
        work = _PendingWork(_asked(dist.isend, parcel, self.rank_of[peer], tag=tag), parcel)
        return self._watched(work, peer, comes=False) if watched else work

    def receive(self, buffer: torch.Tensor, peer: str, tag: int, watched: bool = False) -> Handle:
        group = self.pairs.get((peer, self.name))
        if group is not None or self._is_in_order(peer):
            return _PendingWork(_asked(dist.irecv, _as_sent(buffer), self.rank_of[peer], group), buffer)
        on_cpu = buffer.device.type == "cpu"
        parcel = buffer if on_cpu else torch.empty_like(buffer, device="cpu", pin_memory=True)
        rank = self.rank_of[peer]
        if rank in self.neighbours:
            return _UnderWay([self.neighbours.receive(parcel, rank, tag)], parcel, self.device)
        work = _PendingWork(_asked(dist.irecv, _as_sent(parcel), rank, tag=tag), parcel, self.device)
        return self._watched(work, peer, comes=True) if watched else work

    def proceed(self) -> None:
        self.neighbours.proceed()

    def reduce(self, tensor: torch.Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        if len(devices) == 1:
            return Sum([tensor], 1, tensor.device)
        term = tensor.to(self._collecting(devices)).contiguous()
        work = _asked(dist.all_reduce, term, group=self.groups[devices], async_op=True)
        return _PendingWork(work, term, tensor.device)

    def gather(self, tensor: torch.Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        if len(devices) == 1:
            return GatheredRows([tensor], 1, tensor.device)
        term = tensor.to(self._collecting(devices)).contiguous()
        every = term.new_empty(len(devices), len(term))
        if self._neighbourly(devices):
            own = every[devices.index(self.name)].copy_(term)
            return _UnderWay(self._exchanged([own] * len(devices), every, devices, tag), every, tensor.device)
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the former's newer name
        work = _asked(gather, every.view(-1), term, group=self.groups[devices], async_op=True)
        return _PendingWork(work, every, tensor.device)

    def scatter(self, tensor: torch.Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        if len(devices) == 1:
            return Sum([tensor[0]], 1, tensor.device)
        device, group = self._collecting(devices), self.groups[devices]
        term = tensor.to(device).contiguous()
        if device.type == "cpu":  # gloo would sum whole vectors; sending rows costs less
            every = torch.empty_like(term)
            if self._neighbourly(devices):
                place = devices.index(self.name)
                every[place] = term[place]
                under_way = self._exchanged(list(term), every, devices, tag)
                return _UnderWay(under_way, every, tensor.device, added=True)
            ends = every.view(-1), term.view(-1)
            exchange = _asked(dist.all_to_all_single, *ends, group=group, async_op=True)
            return _UnderWay([_PendingWork(exchange, term)], every, tensor.device, added=True)
        own = term.new_empty(term.shape[1])
        work = _asked(dist.reduce_scatter_tensor, own, term.view(-1), group=group, async_op=True)
        return _PendingWork(work, own, tensor.device)

    def _neighbourly(self, devices: tuple[str, ...]) -> bool:
        others = (self.rank_of[name] for name in devices if name != self.name)
        return self._collecting(devices).type == "cpu" and all(rank in self.neighbours for rank in others)

    def _exchanged(
        self, rows: list[torch.Tensor], every: torch.Tensor, devices: tuple[str, ...], tag: int
    ) -> list[Handle]:
        """All-to-all by rows into `every`."""
        ranks = [(place, self.rank_of[name]) for place, name in enumerate(devices) if name != self.name]
        going: list[Handle] = [self.neighbours.send(rows[place], rank, tag) for place, rank in ranks]
        coming: list[Handle] = [self.neighbours.receive(every[place], rank, tag) for place, rank in ranks]
        return coming + going

    def _collecting(self, devices: tuple[str, ...]) -> torch.device:
        nccl = all(self.devices[name].type == "cuda" for name in devices)
        return self.device if nccl else torch.device("cpu")

    def _watched(self, work: _PendingWork, peer: str, comes: bool) -> Handle:
        if (peer, comes) not in self.watchers:
            self.watchers[peer, comes] = ThreadPoolExecutor(1)
        return _WatchedTransfer(self.watchers[peer, comes].submit(work.wait, _FOREVER_S))

    def _is_in_order(self, peer: str) -> bool:
        return self.in_order and self.device.type == self.devices[peer].type == "cuda"

    def _first(self) -> torch.Tensor:
        return torch.zeros(1, device=self.device)

    def _group(self, names: tuple[str, ...], backend: str) -> dist.ProcessGroup:
        ranks = sorted(self.rank_of[name] for name in names)
        group = dist.new_group(ranks, self.timeout, backend)
        assert isinstance(group, dist.ProcessGroup) or self.name not in names
        return group


def _as_sent(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a view of its bytes where backends do not support its dtype."""
    if tensor.dtype in _CARRIED:
        return tensor.resolve_neg()
    flat = tensor.resolve_conj().resolve_neg().reshape(-1)
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)  # that of a single element may be any


def _asked(operation: Callable[..., dist.Work | None], *args: Any, **kwargs: Any) -> dist.Work:
    """Begin an operation of ``torch.distributed``; raises `TransportLost` if the peer is gone."""
    try:
        work = operation(*args, **kwargs)
    except RuntimeError as error:
        raise TransportLost(str(error)) from error
    assert work is not None
    return work


def _links(program: Program) -> list[tuple[str, str]]:
    pairs = {
        (name, ins.peer)
        for name, each in program.instructions.items()
        for ins in each
        if isinstance(ins, Send)
    }
    return sorted(pairs)


def _sums(program: Program) -> list[tuple[str, ...]]:
    groups = {
        ins.devices for each in program.instructions.values() for ins in each if isinstance(ins, Collective)
    }
    return sorted(names for names in groups if len(names) > 1)


class _PendingWork:
    def __init__(self, work: dist.Work, tensor: torch.Tensor, device: torch.device | None = None) -> None:
        self.work = work
        self.tensor = tensor
        self.device = device or tensor.device

    def wait(self, timeout_s: float) -> torch.Tensor:
        try:
            if self.tensor.is_cuda:
                self.work.wait()  # the stream waits; the host goes on and asks `done` later
                if self.device.type == "cpu":
                    self._look(timeout_s)  # the copy below would wait without a limit
            else:
                self.work.wait(timedelta(seconds=timeout_s))
        except RuntimeError as error:
            timed_out = "timed out" in str(error).lower() or "timeout" in str(error).lower()
            raise (TransportTimeout if timed_out else TransportLost)(str(error)) from error
        return moved(self.tensor, self.device)

    def _look(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.done():
            if time.monotonic() > deadline:
                raise TransportTimeout(f"not finished within {timeout_s:g} s")
            time.sleep(_LOOK_S)

    def done(self) -> bool:
        if not self.work.is_completed():
            return False
        failed = self.work.exception() if self.tensor.is_cuda else None
        if failed is not None:  # NCCL also calls failed work completed
            raise failed
        return True


@dataclass
class _UnderWay:
    """Transfers that fill a tensor, whose rows are summed on arrival if asked."""

    transfers: list[Handle]
    tensor: torch.Tensor
    device: torch.device
    added: bool = False

    def wait(self, timeout_s: float) -> torch.Tensor:
        for each in self.transfers:
            each.wait(timeout_s)
        return moved(self.tensor.sum(0) if self.added else self.tensor, self.device)

    def done(self) -> bool:
        return all(each.done() for each in self.transfers)


@dataclass
class _WatchedTransfer:
    """A gloo transfer that a thread waits for, as gloo cannot be polled."""

    future: Future[torch.Tensor]

    def wait(self, timeout_s: float) -> torch.Tensor:
        try:
            return self.future.result(timeout_s)
        except TimeoutError as error:
            raise TransportTimeout(f"not over within {timeout_s:g} s") from error

    def done(self) -> bool:
        return self.future.done() and self.future.exception() is None
