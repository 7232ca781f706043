"""The bytes inside segments, made once for all programs of a graph that have the same ones.

Plans that are compared differ in their schedule, or in one border: most of their segments are those of the
plan before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.graph.ir import Graph
from netsplit.profile.costs import NodeBytes
from netsplit.program.instructions import Segment
from netsplit.simulate.segment_memory import SegmentMemory

__all__ = ["SegmentShapes"]

_KEPT = 128  # segments
_LARGE = 2_000  # nodes, beyond which a segment is not kept


@dataclass(frozen=True)
class SegmentShapes:
    """Of one graph; `own` are its `storage_bytes`."""

    graph: Graph
    training: bool
    own: dict[str, int]
    large: dict[_Wanted, SegmentMemory] = field(default_factory=dict)

    def of(
        self, segment: Segment, split: bool, transients: Mapping[str, NodeBytes], offloaded: bool
    ) -> SegmentMemory:
        """One for all replicas of a kind, and for all programs: its walks are the same.

        Args:
            split: whether its backwards are in two parts.
            transients: of its device's kind.
        """
        ids = (id(self.graph), id(transients))
        wanted = _Wanted(ids, self.training, segment, split, offloaded, self.graph, self.own, transients)
        if len(segment.nodes) <= _LARGE:
            return _kept(wanted)
        if wanted not in self.large:
            self.large[wanted] = wanted.made()
        return self.large[wanted]


@dataclass(frozen=True)
class _Wanted:
    """What a segment's bytes depend on. Graph and transients are told by identity, and held so that it is
    theirs."""

    ids: tuple[int, int]
    training: bool
    segment: Segment
    split: bool
    offloaded: bool
    graph: Graph = field(compare=False)
    own: dict[str, int] = field(compare=False)
    transients: Mapping[str, NodeBytes] = field(compare=False)

    def made(self) -> SegmentMemory:
        nodes = self.segment.nodes
        deferred = deferrable_nodes(self.graph, nodes) if self.split else frozenset()
        return SegmentMemory(
            self.graph, self.training, self.segment, self.own, deferred, self.transients, self.offloaded
        )


@lru_cache(maxsize=_KEPT)
def _kept(wanted: _Wanted) -> SegmentMemory:
    return wanted.made()
