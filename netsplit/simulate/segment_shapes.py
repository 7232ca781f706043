"""The bytes inside segments, made once for all programs of a placed graph that have the same ones.

Plans that are compared differ in their schedule alone, or in what they compute again: most of their segments
are those of the plan before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.graph.ir import Graph, once_of
from netsplit.profile.costs import NodeBytes
from netsplit.program.instructions import Segment
from netsplit.simulate.segment_memory import SegmentMemory

__all__ = ["SegmentShapes"]


@dataclass(frozen=True)
class SegmentShapes:
    """Of one placed graph; `own` are its `storage_bytes`."""

    graph: Graph
    training: bool
    own: dict[str, int]

    def of(
        self, segment: Segment, split: bool, transients: Mapping[str, NodeBytes], offloaded: bool
    ) -> SegmentMemory:
        """One for all replicas of a kind, and for all programs: its walks are the same.

        Args:
            split: whether its backwards are in two parts.
            transients: of its device's kind.
        """
        known = _shapes_of(self.graph)
        wanted = _SegmentAsked(id(transients), self.training, segment, split, offloaded, transients)
        shape = known.get(wanted)
        if shape is None:
            deferred = deferrable_nodes(self.graph, segment.nodes) if split else frozenset[str]()
            shape = known[wanted] = SegmentMemory(
                self.graph, self.training, segment, self.own, deferred, transients, offloaded
            )
        return shape


@once_of
def _shapes_of(graph: Graph) -> dict[_SegmentAsked, SegmentMemory]:
    return {}


@dataclass(frozen=True)
class _SegmentAsked:
    """What a segment's bytes depend on; transients by identity, and held so that it stays theirs."""

    identity: int
    training: bool
    segment: Segment
    split: bool
    offloaded: bool
    transients: Mapping[str, NodeBytes] = field(compare=False)
