"""The processes of two meshes of ``torch.distributed``: what they agree on, and how tensors move between."""

from __future__ import annotations

import socket
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

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
        hosts: by rank; the leader alone knows them.
        plans: by what they are for, alike on all.
    """

    leader: int
    ranks: tuple[int, ...]
    transport: ProcessTransport
    hosts: dict[int, str] = field(default_factory=dict)
    plans: dict[Hashable, ReshardPlan] = field(default_factory=dict)

    @property
    def network(self) -> Network:
        """The processes of a host behind one NIC, all NICs and all insides alike."""
        by_host: dict[str, list[int | str]] = {}
        for rank, host in self.hosts.items():
            by_host.setdefault(host, []).append(rank)
        return Network.uniform(by_host, _NIC_BANDWIDTH, _INSIDE_BANDWIDTH, _NIC_LATENCY_S, _INSIDE_LATENCY_S)

    def told(self, what: _Told | None) -> _Told:
        """What the leader says, to all."""
        box: list[Any] = [what]
        if dist.get_rank() == self.leader:
            for rank in self.ranks:
                if rank != self.leader:
                    dist.send_object_list(box, rank)
        else:
            dist.recv_object_list(box, self.leader)
        told: _Told = box[0]
        return told

    def objection(self, own: str) -> str:
        """The first that any of them has, for all; "" where none has."""
        if dist.get_rank() != self.leader:
            dist.send_object_list([own], self.leader)
            return self.told(own)
        for rank in self.ranks:
            if rank != self.leader:
                box = [""]
                dist.recv_object_list(box, rank)
                own = own or box[0]
        return self.told(own)

    def learn_hosts(self) -> None:
        own, name = dist.get_rank(), socket.gethostname()
        if own != self.leader:
            dist.send_object_list([name], self.leader)
            return
        for rank in self.ranks:
            box = [name]
            if rank != own:
                dist.recv_object_list(box, rank)
            self.hosts[rank] = box[0]


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
        known[key] = Meeting(leader, ranks, transport)
        known[key].learn_hosts()
    return known[key]
