"""The bytes inside segments, made once for all programs of a placed graph that have the same ones.

Plans that are compared differ in their schedule alone, or in what they compute again: most of their segments
are those of the plan before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import ceil

from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.graph.ir import Graph, once_of
from netsplit.graph.storage import storage_bytes
from netsplit.profile.costs import NodeBytes
from netsplit.program.instructions import Segment
from netsplit.simulate.lifetimes.segment_memory import SegmentMemory

__all__ = ["SegmentShapes"]


@dataclass(frozen=True)
class SegmentShapes:
    """Of one placed graph.

    Args:
        part: of the samples that transients are known of, to which they are taken to be in proportion.
    """

    graph: Graph
    training: bool
    part: Fraction = Fraction(1)

    @cached_property
    def own(self) -> dict[str, int]:
        """See `storage_bytes`."""
        return storage_bytes(self.graph)

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
            own = {name: self._of_part(transients[name]) for name in segment.nodes if name in transients}
            shape = known[wanted] = SegmentMemory(
                self.graph, self.training, segment, self.own, deferred, own, offloaded
            )
        return shape

    def _of_part(self, each: NodeBytes) -> NodeBytes:
        return NodeBytes(ceil(self.part * each.forward), ceil(self.part * each.backward))


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
