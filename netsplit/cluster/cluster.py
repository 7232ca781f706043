"""Devices, the links between them, and what a link costs.

A link is modelled as ``seconds = latency_s + bytes * seconds_per_byte`` per ordered pair of
devices (NetSplit thesis, section 4.2). Same device: zero. That is what a transfer takes alone; between hosts
it has to wait where others are under way through the same network interface (`Nic`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from netsplit.cluster.collectives import CollectiveName, collective_seconds
from netsplit.errors import ConfigError

__all__ = ["Cluster", "Device", "LevelLinks", "Link", "Nic", "nics_of"]


@dataclass(frozen=True)
class Link:
    """A directed link with its linear cost; `r_squared` says how well the line fits (None: given)."""

    latency_s: float
    seconds_per_byte: float
    r_squared: float | None = None

    def seconds(self, nbytes: float) -> float:
        return self.latency_s + nbytes * self.seconds_per_byte

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return 1.0 / self.seconds_per_byte if self.seconds_per_byte > 0 else float("inf")


CollectiveRule: TypeAlias = Literal["ring", "nccl"]
"""What a sum or gathering takes: rounds of a ring over the links, or what NCCL does (`collectives`)."""


@dataclass(frozen=True)
class Device:
    """One place that runs operators: a worker process with one CPU thread, or one GPU."""

    name: str  # "cpu:0", "cuda:1": unique in the cluster
    kind: str  # devices of one kind have the same speed: "cpu", "NVIDIA H100"
    capacity_bytes: int
    torch_device: str = "cpu"  # what the worker passes to torch.device
    port: Link | None = None
    """The link to host memory, if all transfers pass the host; None: it has peer links."""
    host: str | None = None
    """Its machine, whose memory its CPU devices share; None: it shares nothing."""
    processors: float | None = None
    """Processors that its host's CPU devices share; None: one for each."""

    @property
    def memory_host(self) -> str | None:
        """The host whose memory it computes in; None: it has its own."""
        return self.host if self.torch_device.startswith("cpu") else None


@dataclass(frozen=True)
class Nic:
    """The network interface that a host's devices share on the way to other hosts; full duplex.

    Each direction takes one transfer at a time, for `bytes * seconds per byte`: not for the link's latency.
    It is at least as fast as every link through it; where it is faster, transfers overlap.
    """

    host: str
    devices: tuple[str, ...]  # of the host
    out_s_per_byte: float
    in_s_per_byte: float


@dataclass(frozen=True, eq=False)
class LevelLinks(Mapping[tuple[str, str], Link]):
    """The links of a regular tree of machines, kept by level: a pair has that of the least unit with both.

    Args:
        names: of the devices, in rank order.
        units: devices of a unit of each level, innermost first; the last has all.
        by_level: the link of each level.
    """

    names: tuple[str, ...]
    units: tuple[int, ...]
    by_level: tuple[Link, ...]

    @cached_property
    def ranks(self) -> dict[str, int]:
        return {name: p for p, name in enumerate(self.names)}

    def __getitem__(self, ends: tuple[str, str]) -> Link:
        p, q = self.ranks[ends[0]], self.ranks[ends[1]]
        if p == q:
            raise KeyError(ends)
        return next(
            link for link, unit in zip(self.by_level, self.units, strict=True) if p // unit == q // unit
        )

    @property
    def examples(self) -> list[tuple[str, str]]:
        """A pair of each level."""
        return [(self.names[0], self.names[unit - 1]) for unit in self.units if unit > 1]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return permutations(self.names, 2)

    def __len__(self) -> int:
        return len(self.names) * (len(self.names) - 1)


@dataclass(frozen=True)
class _Group:
    """Devices that sum or gather together: unlike links of their ring, and bytes per second of a device."""

    links: tuple[Link, ...]
    inside: float  # on its host
    between: float  # to others
    hosts: int


@dataclass(frozen=True)
class Cluster:
    """Devices in rank order and a link for every ordered pair of different device names."""

    name: str
    devices: tuple[Device, ...]
    links: Mapping[tuple[str, str], Link]
    levels: tuple[tuple[int, float], ...] = ()
    """(members, bytes per second) of every level of a regular tree of machines, innermost first, with devices
    in depth-first order; empty for other links."""
    nics: tuple[Nic, ...] = ()
    """One per host; a device in none of them shares no network."""
    collectives: CollectiveRule = "ring"

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        if not names:
            raise ConfigError(f"cluster '{self.name}' has no device: list at least one.")
        if len(set(names)) != len(names):
            raise ConfigError(f"cluster '{self.name}' names a device twice: {names}.")
        if self.collectives not in get_args(CollectiveRule):
            rules = " or ".join(get_args(CollectiveRule))
            raise ConfigError(f"cluster.collectives is {self.collectives!r}: give {rules}.")
        attached = [device for nic in self.nics for device in nic.devices]
        if len({nic.host for nic in self.nics}) < len(self.nics) or len(set(attached)) < len(attached):
            raise ConfigError(
                f"cluster '{self.name}' has two NICs of one host, or a device behind two NICs: give each "
                "host one."
            )
        if not set(attached) <= set(names):
            raise ConfigError(
                f"cluster '{self.name}' has '{min(set(attached) - set(names))}' behind a NIC, but no "
                f"device of that name: {names}."
            )

    @property
    def names(self) -> list[str]:
        return [device.name for device in self.devices]

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.devices)

    def device(self, name: str) -> Device:
        if (device := next((d for d in self.devices if d.name == name), None)) is not None:
            return device
        raise ConfigError(f"cluster '{self.name}' has no device '{name}': {self.names}.")

    def check_links(self) -> None:
        """Refuse a cluster in which two devices have no link, or one without a sensible cost."""
        known = self.links
        for source, target in (
            known.examples if isinstance(known, LevelLinks) else permutations(self.names, 2)
        ):
            link = known.get((source, target))
            if link is None:
                raise ConfigError(
                    f"cluster '{self.name}' has no link from '{source}' to '{target}': every ordered pair of "
                    "devices needs one."
                )
            if not (0 <= link.latency_s < math.inf and 0 <= link.seconds_per_byte < math.inf):
                raise ConfigError(
                    f"cluster '{self.name}': the link from '{source}' to '{target}' has latency "
                    f"{link.latency_s} s and {link.seconds_per_byte} s a byte: give finite numbers of 0 or "
                    "more."
                )
            for nic, pace in self.way(source, target) if self.nics else ():
                if not 0 <= pace <= link.seconds_per_byte:
                    raise ConfigError(
                        f"cluster '{self.name}': the NIC of '{nic[0]}' takes {pace} s a byte, and the link "
                        f"from '{source}' to '{target}' through it {link.seconds_per_byte} s: give the NIC "
                        "no less bandwidth than any such link."
                    )

    def nic(self, device: str) -> Nic | None:
        """The NIC of a device's host; None: it shares none."""
        return self._nic_of.get(device)

    @cached_property
    def _nic_of(self) -> dict[str, Nic]:
        return {device: nic for nic in self.nics for device in nic.devices}

    def way(self, source: str, target: str) -> tuple[tuple[tuple[str, str], float], ...]:
        """What a transfer shares with others: (host, "out" or "in") and seconds per byte of the NICs it
        passes; none within a host."""
        out, into = self._nic_of.get(source), self._nic_of.get(target)
        if out is into:
            return ()
        leaves = () if out is None else (((out.host, "out"), out.out_s_per_byte),)
        return leaves if into is None else (*leaves, ((into.host, "in"), into.in_s_per_byte))

    @cached_property
    def link_costs(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[D, D] each, from row to column: latency in seconds, seconds per byte; zero without a link."""
        costs = np.zeros((2, len(self.devices), len(self.devices)))
        rank = {device.name: p for p, device in enumerate(self.devices)}
        for (source, target), link in self.links.items():
            if source in rank and target in rank:
                costs[:, rank[source], rank[target]] = link.latency_s, link.seconds_per_byte
        return costs[0], costs[1]

    def transfer_seconds(self, nbytes: int, source: str, target: str) -> float:
        """Seconds to move `nbytes` between two named devices; zero on the same device."""
        return 0.0 if source == target else self.links[source, target].seconds(nbytes)

    def ring(self, devices: Sequence[str]) -> list[tuple[str, str]]:
        """A ring's links, in which a host's devices follow one another."""
        if len(devices) < 2:
            return []
        first: dict[str, int] = {}
        for p, device in enumerate(devices):
            nic = self._nic_of.get(device)
            first[device] = p if nic is None else first.setdefault(nic.devices[0], p)
        order = sorted(devices, key=first.__getitem__)
        return list(zip(order, (*order[1:], order[0]), strict=True))

    def ring_seconds(self, nbytes: float, devices: Sequence[str], times: int = 2) -> float:
        """A ring all-reduce: 2 (r - 1) rounds in which every link carries one r-th of the bytes.

        A round lasts as long as its slowest link. All-gather and reduce-scatter go round once (`times`).
        """
        return self.group_seconds("all_reduce" if times == 2 else "all_gather", nbytes, devices)

    def group_seconds(
        self, kind: CollectiveName, nbytes: float, devices: Sequence[str], every: bool = False
    ) -> float:
        """Seconds of what devices do together, by `collectives`.

        Args:
            nbytes: of the whole tensor, which is summed, gathered or scattered.
            every: all devices of their hosts do the same at the same time, and share the NICs.
        """
        if len(devices) < 2:
            return 0.0
        group = self._groups.get((devices := tuple(devices), every))
        if group is None:
            group = self._groups[devices, every] = self._group(devices, every)
        if self.collectives == "nccl":
            return collective_seconds(kind, nbytes, len(devices), group.inside, group.hosts, group.between)
        rounds = (2 if kind == "all_reduce" else 1) * (len(devices) - 1)
        return rounds * max(link.seconds(nbytes / len(devices)) for link in group.links)

    @cached_property
    def _groups(self) -> dict[tuple[tuple[str, ...], bool], _Group]:
        return {}

    def _group(self, devices: tuple[str, ...], every: bool) -> _Group:
        hosts = Counter(map(self._host_of, devices))
        links, inside, between = set[Link](), math.inf, math.inf
        for p, q in self.ring(devices):
            link = self.links[p, q]
            if self._host_of(p) == self._host_of(q):
                inside = min(inside, link.bandwidth)
            for (host, _), pace in self.way(p, q):
                sharing = self._host_sizes[host] if every else hosts[host]
                between = min(between, link.bandwidth, 1.0 / max(sharing * pace, 1e-30))
                rings = sharing / hosts[host]
                link = replace(link, seconds_per_byte=max(link.seconds_per_byte, rings * pace))
            links.add(link)
        return _Group(tuple(links), inside, between, len(hosts))

    @cached_property
    def _host_sizes(self) -> dict[str, int]:
        return {nic.host: len(nic.devices) for nic in self.nics}

    def _host_of(self, device: str) -> str:
        """The host by its NIC; devices that share none are on one host, where no others share any."""
        nic = self._nic_of.get(device)
        return nic.host if nic is not None else device if self.nics else ""

    def with_links(self, links: Mapping[tuple[str, str], Link]) -> Cluster:
        """The same devices over other links, without levels; NICs are as fast as the fastest through them."""
        nics = nics_of({nic.host: nic.devices for nic in self.nics}, links)
        return replace(self, links=links, levels=(), nics=nics)


def nics_of(
    hosts: Mapping[str, Sequence[str]], links: Mapping[tuple[str, str], Link], bandwidth: float | None = None
) -> tuple[Nic, ...]:
    """A NIC per host if there are several; its rate is given, or its fastest link's."""
    host_of = {device: host for host, devices in hosts.items() for device in devices}
    paces: dict[tuple[str | None, int], float] = {}
    for ends, link in links.items():
        ends_hosts = tuple(map(host_of.get, ends))
        if ends_hosts[0] != ends_hosts[1]:
            for end, host in enumerate(ends_hosts):
                least = min(paces.get((host, end), math.inf), link.seconds_per_byte)
                paces[host, end] = least if bandwidth is None else 1.0 / bandwidth
    return tuple(
        Nic(host, tuple(devices), paces[host, 0], paces[host, 1])
        for host, devices in hosts.items()
        if (host, 0) in paces and (host, 1) in paces
    )
