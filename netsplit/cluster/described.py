"""Described clusters, for planning on devices that are not here.

A description names each device's model in the catalogue, to predict its seconds, or its speed relative to the
device a graph was measured on. Capacities may be fractions of the graph's need. All become numbers once graph
and costs are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, permutations
from operator import mul
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from netsplit.cluster.catalogue import Rates, accelerator
from netsplit.cluster.cluster import Cluster, CollectiveRule, Device, LevelLinks, Link, Nic, nics_of
from netsplit.cluster.local import (
    ClusterSpec,
    given_capacity,
    given_count,
    given_number,
    given_rate,
    given_speed,
)  # fmt: skip
from netsplit.config import build
from netsplit.errors import ConfigError
from netsplit.signature import suggest

__all__ = [
    "ClusterDescription", "DescribedDevice", "DescribedHost", "DescribedLink", "LinkCost",
    "described_cluster", "kind_name", "named_cluster", "uniform_cluster",
]  # fmt: skip

MOST_DEVICES = 4096


@dataclass(frozen=True)
class DescribedDevice:
    """One device as a config gives it."""

    name: str
    speed: float = 1.0  # 0.5: every operator takes twice as long as measured, or as `model` does
    capacity: int | float | str | None = None
    """Bytes, "16GB", or a fraction of the graph's need; None: its model's memory without the CUDA context,
    or 100%."""
    model: str | None = None
    """A name in `cluster.catalogue`, such as "TITAN RTX", or a file of rates; None: costs are measured."""


@dataclass(frozen=True)
class LinkCost:
    """A link as a config gives it."""

    bandwidth: int | float | str  # bytes per second, or text such as 12GB
    latency: float = 0.0  # seconds


@dataclass(frozen=True)
class DescribedLink:
    """The link between any two of the named devices, in both directions."""

    between: list[str]
    bandwidth: int | float | str
    latency: float = 0.0


@dataclass(frozen=True)
class DescribedHost:
    """Devices of one host, which share its NIC."""

    name: str
    devices: list[str]
    nic: int | float | str = "auto"  # bytes per second each way; auto: the fastest outgoing link's


@dataclass(frozen=True)
class ClusterDescription:
    """Devices by name with speeds and capacities, and all links."""

    name: str
    speeds: dict[str, float]  # device -> relative to what was measured; in rank order
    capacities: dict[str, int | float]  # device -> bytes (int), or a fraction of the graph's need (float)
    links: Mapping[tuple[str, str], Link] = field(repr=False)
    levels: tuple[tuple[int, float], ...] = ()
    accelerators: dict[str, Rates] = field(default_factory=dict)
    """Rates of all devices, or of none: speeds are then relative to measured costs."""
    overlap: bool = True
    """Whether transfers overlap with computing; if not, neither end computes meanwhile, as with copies on the
    computing stream (`Tensor.to`)."""
    nics: tuple[Nic, ...] = ()
    collectives: CollectiveRule = "ring"

    def cluster(self, base_kind: str, need_bytes: int) -> Cluster:
        """The cluster for one graph.

        Args:
            base_kind: device kind that the graph's costs were measured on; has speed 1. Of no account where
                the devices are accelerators, whose kind is the model's name.
            need_bytes: bytes of the whole graph on one device, for capacities given as fractions.
        """
        devices = []
        for name, speed in self.speeds.items():
            known, capacity = self.accelerators.get(name), self.capacities[name]
            kind = kind_name(base_kind, speed) if known is None else known.name
            nbytes = capacity if isinstance(capacity, int) else max(1, math.ceil(capacity * need_bytes))
            devices.append(Device(name, kind, nbytes))
        cluster = Cluster(self.name, tuple(devices), self.links, self.levels, self.nics, self.collectives)
        cluster.check_links()
        return cluster

    @property
    def alike_hosts(self) -> int:
        """Devices of each host, where all are of one model and capacity, and joined by levels; else 0."""
        kinds = {*zip(map(id, self.accelerators.values()), self.capacities.values(), strict=False)}
        sizes = {len(nic.devices) for nic in self.nics} or {len(self.speeds)}
        alike = isinstance(self.links, LevelLinks) and len(kinds) == len(sizes) == 1
        return min(sizes) if alike else 0

    def require_models(self) -> None:
        """Raises ConfigError if the description has only relative speeds."""
        if not self.accelerators:
            raise ConfigError(
                f"cluster '{self.name}' gives only relative speeds, which need a measured graph: choose "
                "one that names device models, such as cluster=titan_rtx3 or cluster=uniform "
                "cluster.model='TITAN RTX', or plan a graph file with `netsplit plan graph=<file>`, "
                "`netsplit partition` or netsplit.plan(..., profile=<file>)."
            )


def kind_name(base_kind: str, speed: float) -> str:
    """The device kind of a speed: the base's own name for 1, else as ``"accelerator x0.5"``."""
    return base_kind if speed == 1.0 else f"{base_kind} x{speed:.12g}"


def uniform_cluster(
    devices: int | Sequence[int],
    bandwidth: float | str | Sequence[float | str],
    capacity: int | float | str | None = None,
    latency: float | Sequence[float] = 0.0,
    speed: float = 1.0,
    name: str = "uniform",
    model: str | None = None,
    overlap: bool = True,
    nic: float | str | None = "auto",
    nodes: int | None = None,
    collectives: CollectiveRule = "ring",
) -> ClusterDescription:
    """Equal devices "d0", "d1", ..., with one kind of link or with one per level.

    Args:
        devices: how many; or a list, innermost level first: [4, 2] are 2 machines of 4 devices each.
        bandwidth: bytes per second; or a list with one entry per level.
        capacity: bytes of each device, a size such as 16GB, or a fraction of the graph's need such as 40%;
            None: as of the model.
        latency: seconds; or a list with one entry per level.
        speed: of each device, relative to its model, or to the one that the graph's costs were measured on.
        model: of `cluster.catalogue`, such as TITAN RTX; None: costs are measured.
        overlap: of transfers with computing, see `ClusterDescription`.
        nic: bytes per second each way that a machine's devices share towards others; "auto": as the link
            between two machines; None: every pair of devices has its own network.
        nodes: number of machines, each with all levels of `devices`; `bandwidth` and `latency` then have one
            more entry, for the links between them. None: the innermost level is a machine.
        collectives: "ring" or "nccl": what sums and gatherings take (`cluster.collectives`).

    Raises:
        ConfigError: a value that makes no sense, by its key.
    """
    counts = [given_count(value) for value in _as_list(devices)]
    machine = math.prod(counts[:1] if nodes is None else counts)
    counts += [] if nodes is None else [given_count(nodes, "cluster.nodes")]
    if not counts:
        raise ConfigError("cluster.devices is an empty list: give a number, or one per level as in [4,2].")
    total = math.prod(counts)
    if total > MOST_DEVICES:
        many = f"cluster.devices is {devices}" + (f" in {nodes} nodes" if nodes else "")
        raise ConfigError(f"{many}, {total} devices in all: give at most {MOST_DEVICES}.")
    given = {"bandwidth": _as_list(bandwidth), "latency": _as_list(latency)}
    for key, values in given.items():
        if len(values) not in (1, len(counts)):
            raise ConfigError(
                f"cluster.{key} has {len(values)} entries, but there are {len(counts)} levels of devices: "
                "give one number, or one for each level."
            )
    rates = [given_rate(value, "cluster.bandwidth") for value in _spread(given["bandwidth"], len(counts))]
    waits = [given_number(value, "cluster.latency") for value in _spread(given["latency"], len(counts))]
    if nodes == 1:
        counts.pop()  # without its link
    names = [f"d{i}" for i in range(total)]
    if model is None and capacity is None:
        raise ConfigError(
            "cluster.capacity and cluster.model are both null: give cluster.capacity=16GB, a fraction as "
            "cluster.capacity=40%, or cluster.model='TITAN RTX'."
        )
    each = DescribedDevice("", speed, capacity, model)
    known = _accelerator(each, "cluster")
    costs = tuple(Link(w, 1.0 / r) for w, r in zip(waits, rates, strict=True))
    links = LevelLinks(tuple(names), tuple(accumulate(counts, mul)), costs[: len(counts)])
    return ClusterDescription(
        name=name,
        speeds=dict.fromkeys(names, given_speed(speed, "cluster.speed")),
        capacities=dict.fromkeys(names, _device_capacity(each, "cluster")),
        links=links,
        levels=tuple(zip(counts, rates, strict=False)),
        accelerators={} if known is None else dict.fromkeys(names, known),
        overlap=overlap,
        collectives=collectives,
        nics=() if nic is None else _nics_of_machines(links, machine, nic),
    )


def _nics_of_machines(links: LevelLinks, count: int, nic: float | str) -> tuple[Nic, ...]:
    names = links.names
    outside = [
        each.seconds_per_byte for each, unit in zip(links.by_level, links.units, strict=True) if unit > count
    ]
    if nic != "auto" and not outside:
        raise ConfigError(
            f"cluster.nic is {nic!r}, but cluster.devices is one machine, which uses no NIC: give "
            "cluster.devices one number per level, such as [4,2], or cluster.nic=auto."
        )
    if not outside:
        return ()
    pace = min(outside) if nic == "auto" else 1.0 / given_rate(nic, "cluster.nic")
    hosts = (names[i : i + count] for i in range(0, len(names), count))
    return tuple(Nic(f"host{i}", each, pace, pace) for i, each in enumerate(hosts))


def described_cluster(
    name: str,
    devices: Sequence[DescribedDevice],
    link: LinkCost,
    links: Sequence[DescribedLink] = (),
    overlap: bool = True,
    hosts: Sequence[DescribedHost] = (),
) -> ClusterDescription:
    """Any devices, each with its own speed and capacity.

    Args:
        devices: in rank order.
        link: of every pair for which `links` says nothing.
        links: of groups; later entries win over earlier ones.
        overlap: of transfers with computing, see `ClusterDescription`.
        hosts: that are joined by a network; a device in none shares nothing with others on its way.

    Raises:
        ConfigError: a value that makes no sense, by its key.
    """
    names = [device.name for device in devices]
    if not names:
        raise ConfigError("cluster.devices is empty: list at least one device.")
    for i, each in enumerate(names):
        if each in names[:i]:
            raise ConfigError(
                f"cluster.devices[{i}].name is '{each}', which is taken: give each its own name."
            )
    link_of = dict.fromkeys(permutations(names, 2), _link(link, "cluster.link"))
    for i, group in enumerate(links):
        key = f"cluster.links[{i}]"
        unknown = [each for each in group.between if each not in names]
        if unknown or len(set(group.between)) < 2:
            raise ConfigError(
                f"{key}.between is [{', '.join(group.between)}]: give two or more of {', '.join(names)}, or "
                "cluster.links=[]."
            )
        link_of |= dict.fromkeys(permutations(dict.fromkeys(group.between), 2), _link(group, key))
    keys = {device.name: f"cluster.devices[{i}]" for i, device in enumerate(devices)}
    return ClusterDescription(
        name=name,
        speeds={d.name: given_speed(d.speed, f"{keys[d.name]}.speed") for d in devices},
        capacities={d.name: _device_capacity(d, keys[d.name]) for d in devices},
        links=link_of,
        accelerators=_accelerators(devices, keys),
        overlap=overlap,
        nics=_nics_of_hosts(hosts, names, link_of),
    )


def _nics_of_hosts(
    hosts: Sequence[DescribedHost], names: Sequence[str], links: Mapping[tuple[str, str], Link]
) -> tuple[Nic, ...]:
    host_of: dict[str, str] = {}
    nics: list[Nic] = []
    for i, host in enumerate(hosts):
        key = f"cluster.hosts[{i}]"
        unknown = [each for each in host.devices if each not in names]
        twice = [each for each in host.devices if each in host_of]
        if unknown or twice or not host.devices or len(set(host.devices)) < len(host.devices):
            raise ConfigError(
                f"{key}.devices is [{', '.join(host.devices)}]: give some of {', '.join(names)}, each in one "
                "host and once."
            )
        if host.name in host_of.values():
            raise ConfigError(f"{key}.name is '{host.name}', which is taken: give each its own name.")
        host_of |= dict.fromkeys(host.devices, host.name)
        rate = None if host.nic == "auto" else given_rate(host.nic, f"{key}.nic")
        nics += nics_of({host.name: host.devices}, links, rate)
    return tuple(nics)


def _accelerators(devices: Sequence[DescribedDevice], keys: Mapping[str, str]) -> dict[str, Rates]:
    """Rates by device name; empty if no device names a model."""
    named = {device.name: _accelerator(device, keys[device.name]) for device in devices}
    known = {name: each for name, each in named.items() if each is not None}
    if known and len(known) < len(named):
        without = next(name for name in named if name not in known)
        raise ConfigError(
            f"{keys[without]} has no model, but other cluster.devices have: give every device a model of "
            "the catalogue, or none and relative speeds."
        )
    return known


def _accelerator(device: DescribedDevice, key: str) -> Rates | None:
    if device.model is None:
        return None
    known = accelerator(device.model, f"{key}.model")
    speed = given_speed(device.speed, f"{key}.speed")
    return known if speed == 1.0 else known.at(speed, kind_name(known.name, speed))


def _device_capacity(device: DescribedDevice, key: str) -> int | float:
    if device.capacity is not None:
        return given_capacity(device.capacity, f"{key}.capacity")
    known = _accelerator(device, key)
    if known is not None and not known.memory_bytes:
        raise ConfigError(
            f"{key}.capacity must be given, as '{device.model}' does not imply it: give a size such as 16GB."
        )
    return 1.0 if known is None else known.capacity_bytes


def _link(cost: LinkCost | DescribedLink, key: str) -> Link:
    return Link(
        given_number(cost.latency, f"{key}.latency"), 1.0 / given_rate(cost.bandwidth, f"{key}.bandwidth")
    )


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _spread(values: list[object], n: int) -> list[object]:
    return values * n if len(values) == 1 else values


OPTIONS = Path(__file__).resolve().parent.parent / "conf" / "cluster"


def named_cluster(name: str) -> ClusterSpec | ClusterDescription:
    known = sorted(path.stem for path in OPTIONS.glob("*.yaml"))
    if name not in known:
        raise ConfigError(f"cluster is '{name}', which is no option of conf/cluster: {suggest(name, known)}")
    node = OmegaConf.load(OPTIONS / f"{name}.yaml")
    assert isinstance(node, DictConfig)
    cluster: ClusterSpec | ClusterDescription = build(OmegaConf.create({"cluster": node}).cluster)
    return cluster
