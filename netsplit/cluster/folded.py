"""A cluster on which groups of devices do the same at the same time, by one of each group.

d0 d1 d2 d3 │ d4 d5 d6 d7     of two hosts, pipeline 2 x data 2 x tensor 2
▲             ▲               the first of each stage; d0, d1, d2, d3 send to their peers at once
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations

from netsplit.cluster.cluster import Cluster, Link, Nic
from netsplit.cluster.collectives import CollectiveName

__all__ = ["FoldedCluster", "folded_cluster"]


@dataclass(frozen=True, eq=False)
class _FoldedLinks(Mapping[tuple[str, str], Link]):
    """Between those that stand for others: between hosts each has its part of the NIC."""

    whole: Cluster
    names: tuple[str, ...]
    alike: Mapping[str, float]  # host -> devices that each of them stands for there

    def __getitem__(self, ends: tuple[str, str]) -> Link:
        if ends[0] == ends[1]:
            return Link(0.0, 0.0)
        link, alike = self.whole.links[ends], self.alike
        paces = (pace * alike.get(host, 1.0) for (host, _), pace in self.whole.way(*ends))
        return replace(link, seconds_per_byte=max((link.seconds_per_byte, *paces)))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return permutations(self.names, 2)

    def __len__(self) -> int:
        return len(self.names) * (len(self.names) - 1)


@dataclass(frozen=True)
class FoldedCluster(Cluster):
    """Devices that stand for others, each on all of whose host the same is done at the same time."""

    whole: Cluster | None = field(default=None, kw_only=True)

    @property
    def size(self) -> int:
        """Devices, with those that they stand for."""
        return super().size if self.whole is None else self.whole.size

    def ring(self, devices: Sequence[str]) -> list[tuple[str, str]]:
        """Those of its own devices that take part, each by itself."""
        return [(name, name) for name in devices if name in self._own]

    @cached_property
    def _own(self) -> frozenset[str]:
        return frozenset(self.names)

    def group_seconds(
        self, kind: CollectiveName, nbytes: float, devices: Sequence[str], every: bool = True
    ) -> float:
        """As of devices of the whole cluster, all of which do so."""
        assert self.whole is not None
        return self.whole.group_seconds(kind, nbytes, devices, every)


def folded_cluster(cluster: Cluster, names: Sequence[str]) -> FoldedCluster:
    """The cluster by these of its devices, which stand for all others."""
    devices = tuple(device for device in cluster.devices if device.name in names)
    nics, alike = list[Nic](), dict[str, float]()
    for nic in cluster.nics:
        if own := tuple(name for name in nic.devices if name in names):
            many = alike[nic.host] = len(nic.devices) / len(own)
            nics.append(Nic(nic.host, own, many * nic.out_s_per_byte, many * nic.in_s_per_byte))
    links = _FoldedLinks(cluster, tuple(names), alike)
    rule = cluster.collectives
    return FoldedCluster(cluster.name, devices, links, nics=tuple(nics), collectives=rule, whole=cluster)
