"""The processes of two meshes of ``torch.distributed``: what they agree on, and how tensors move between."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from netsplit.errors import ReshardError, WorkerError
from netsplit.reshard import Network, ReshardPlan
from netsplit.runtime.transport.process import ProcessTransport

__all__ = ["Meeting", "meeting_of"]

_Told = TypeVar("_Told")

# Only their ratios count: for the strategy and the number of chunks. Bytes per second, and seconds.
_NIC_BANDWIDTH, _INSIDE_BANDWIDTH = 1.25e9, 1.25e10
_NIC_LATENCY_S, _INSIDE_LATENCY_S = 1e-4, 2e-5


@dataclass
class Meeting:
    """What its processes keep between the reshardings that one of them leads.

    Args:
        leader: the rank that plans, and tells the others.
        ranks: of all of them, ascending.
        hosts: by rank.
        calls: redistributions so far.
        timeout_s: of each thing that they say.
        plans: by what they are for, alike on all.
    """

    leader: int
    ranks: tuple[int, ...]
    transport: ProcessTransport
    timeout_s: float
    hosts: dict[int, str] = field(default_factory=dict)
    calls: int = 0
    plans: dict[Hashable, ReshardPlan] = field(default_factory=dict)

    @property
    def network(self) -> Network:
        """The processes of a host behind one NIC, all NICs and all insides alike."""
        by_host: dict[str, list[int | str]] = {}
        for rank, host in self.hosts.items():
            by_host.setdefault(host, []).append(rank)
        return Network.uniform(by_host, _NIC_BANDWIDTH, _INSIDE_BANDWIDTH, _NIC_LATENCY_S, _INSIDE_LATENCY_S)

    def told(self, at: str, what: _Told | None) -> _Told:
        """What the leader says, to all."""
        told: _Told = self._round(at, None, lambda _: what)
        return told

    def objection(self, at: str, own: str) -> str:
        """The first that any of them has, for all; "" where none has."""
        first: str = self._round(at, own, lambda every: next(filter(None, every), ""))
        return first

    def learn_hosts(self) -> None:
        self.hosts = self._round(
            "the first redistribution",
            socket.gethostname(),
            lambda names: dict(sorted(zip((self.leader, *self._others()), names, strict=True))),
        )

    def _round(self, at: str, own: object, answer: Callable[[list[Any]], Any]) -> Any:
        """All tell the leader where they are and what they have to say, and get what it makes of that.

        Who goes back through several redistributions in another order than the others would otherwise be
        sent the gradient of another one.
        """
        at = f"{at} among ranks {list(self.ranks)}"
        if dist.get_rank() != self.leader:
            self._say((at, own), self.leader)
            wrong, answered = self._hear(self.leader)
        else:
            said = {rank: self._hear(rank) for rank in self._others()}
            wrong = next(
                (self._elsewhere(rank, where, at) for rank, (where, _) in said.items() if where != at), ""
            )
            answered = None if wrong else answer([own, *(what for _, what in said.values())])
            for rank in said:
                self._say((wrong, answered), rank)
        if wrong:
            raise ReshardError(wrong)
        return answered

    def _elsewhere(self, rank: int, where: str, at: str) -> str:
        return (
            f"rank {rank} is at {where}, and rank {self.leader} at {at}: redistribute, and go back through "
            "it, in the same order everywhere."
        )

    def _others(self) -> list[int]:
        return [rank for rank in self.ranks if rank != self.leader]

    def _say(self, what: object, rank: int) -> None:
        told = torch.frombuffer(bytearray(pickle.dumps(what)), dtype=torch.uint8)
        for each in (torch.tensor([told.numel()]), told):
            self._over(dist.isend, each.to(self.transport.device), rank)

    def _hear(self, rank: int) -> Any:
        size = torch.zeros(1, dtype=torch.int64, device=self.transport.device)
        self._over(dist.irecv, size, rank)
        told = torch.empty(int(size), dtype=torch.uint8, device=self.transport.device)
        self._over(dist.irecv, told, rank)
        return pickle.loads(told.cpu().numpy().tobytes())

    def _over(self, operation: Callable[..., dist.Work | None], tensor: Tensor, rank: int) -> None:
        try:
            work = operation(tensor, rank)
            assert work is not None
            work.wait(timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise WorkerError(
                f"rank {dist.get_rank()} and rank {rank} did not agree on a redistribution within "
                f"{self.timeout_s:g} s, which both have to call: {reason}."
            ) from error


_Key = tuple[str, int, tuple[int, ...]]
_meetings: WeakKeyDictionary[dist.ProcessGroup, dict[_Key, Meeting]] = WeakKeyDictionary()


def meeting_of(leader: int, ranks: tuple[int, ...], device: torch.device, timeout_s: float) -> Meeting:
    """Of these processes, who all call this; the same again until ``torch.distributed`` is ended.

    No group of its own: torch 2.13 names what members make alone (`use_local_synchronization`) by how many
    groups each has already, and hangs where that differs, as it does once there are meshes of some ranks.
    """
    world = dist.group.WORLD
    assert world is not None
    known = _meetings.setdefault(world, {})
    key = device.type, leader, ranks
    if key not in known:
        devices = {str(rank): device for rank in range(dist.get_world_size())}
        transport = ProcessTransport(devices, str(dist.get_rank()), timeout_s, in_order=True)
        made = Meeting(leader, ranks, transport, timeout_s)
        made.learn_hosts()
        known[key] = made
    known[key].timeout_s = timeout_s
    return known[key]
