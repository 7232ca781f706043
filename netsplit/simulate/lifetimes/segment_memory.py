"""Bytes inside one segment: what its forward makes and keeps, and how its backward goes through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from netsplit.graph.ir import Graph
from netsplit.profile.costs import NodeBytes
from netsplit.program.instructions import Segment
from netsplit.simulate.lifetimes.backward_walk import BackwardWalk, PutOff, Walk
from netsplit.simulate.lifetimes.own_checkpoints import forward_peak
from netsplit.simulate.lifetimes.segment_storages import SegmentStorages

__all__ = ["Key", "OfSize", "OfSizes", "SegmentMemory"]

Key = tuple[str, int, int]  # variable, micro-batch, number (0 for its value, others for gradients)


class SegmentMemory(SegmentStorages):
    """A segment's own bytes in forward and backward, the same for every micro-batch.

    `deferred`: nodes whose weight gradients a backward in two parts puts off; `transients`: what nodes
    allocate for themselves; `offloaded`: what it keeps lies in the host's memory, and comes back storage by
    storage as its backward reads it.
    """

    def __init__(
        self,
        graph: Graph,
        training: bool,
        segment: Segment,
        own: dict[str, int],
        deferred: frozenset[str] = frozenset(),
        transients: Mapping[str, NodeBytes] = MappingProxyType({}),
        offloaded: bool = False,
    ) -> None:
        super().__init__(graph, training, segment, own, deferred, transients, offloaded)
        self.forward_peak = self._forward_peak(frozenset() if offloaded else self.kept, self.extra)
        self.forward_peak_unsaved = self._forward_peak(frozenset(), dict.fromkeys(self.extra, 0))
        self._walks: dict[tuple[frozenset[str], frozenset[str], bool], Walk] = {}
        self._queues: dict[frozenset[str], list[PutOff]] = {}

    def kept_key(self, i: int) -> Key:
        return (f"kept by segment {self.segment.index}", i, 0)

    def snapshot_key(self, i: int) -> Key:
        return (f"written by segment {self.segment.index}", i, 0)

    def deferred_key(self, i: int) -> Key:
        return (f"put off by segment {self.segment.index}", i, 0)

    def backward(self, seeds: frozenset[str], fresh: frozenset[str], split: bool = False) -> Walk:
        """Backward from gradients of the outputs `seeds`, to parameters of which `fresh` have none yet.

        With `split` it is the input part alone.
        """
        key = (seeds, fresh, split)
        if key not in self._walks:
            walk = BackwardWalk(self, seeds, fresh, frozenset(self.deferred if split else ()))
            self._walks[key] = walk.run()
            if split:
                self._queues[seeds] = walk.put_off
        return self._walks[key]

    def weights(self, seeds: frozenset[str], fresh: frozenset[str]) -> Walk:
        """The weight part after `backward(seeds, …, split=True)`; `peak` is beside all that was put off."""
        initializers = self.graph.initializers
        queue = self._queues[seeds]
        savers = Counter(root for each in queue for root in each.roots & self.kept)
        users = Counter(k for each in queue for k in each.parameters)
        waiting = Counter(id(each.gradient) for each in queue)
        ready = fresh & users.keys()
        apart: set[str] = set()
        now = gradients = 0
        peak = (0, 0)
        for each in queue:
            sizes = {k: initializers[k].nbytes for k in each.parameters}
            again = sum(nbytes for k, nbytes in sizes.items() if k in apart)  # a new sum, of two
            gradients += sum(sizes.values()) + again
            peak = max(peak, (now + self.transient(each.node).backward, gradients), key=sum)
            gradients -= 2 * again
            for k, nbytes in sizes.items():
                users[k] -= 1
                apart.add(k)
                if not users[k] and k not in fresh:  # added to what is there
                    gradients -= nbytes
            for root in each.roots & self.kept:
                savers[root] -= 1
                now -= 0 if savers[root] else self.own[root]
            waiting[id(each.gradient)] -= 1
            now -= 0 if waiting[id(each.gradient)] else each.gradient.nbytes
        return Walk(peak, ready)

    def _forward_peak(self, kept: Collection[str], extra: Mapping[str, int]) -> int:
        return forward_peak(
            self.graph,
            self.nodes,
            self.produced,
            self.outputs.union(kept),
            self.own,
            extra,
            self.transients,
            held={run.nodes[-1].name: run.arguments for run in self.checkpoint_runs},
            leaving=self.offloaded,
        )


@dataclass(frozen=True)
class OfSize:
    """What micro-batches of one size take."""

    graph: Graph
    own: Mapping[str, int]  # bytes of storages
    shapes: Mapping[int, SegmentMemory]


@dataclass(frozen=True)
class OfSizes:
    """What micro-batches take, of which the last may be smaller."""

    usual: OfSize
    last: OfSize
    microbatches: int

    def at(self, i: int) -> OfSize:
        """What a micro-batch takes."""
        return self.last if i == self.microbatches - 1 else self.usual

    def bytes_of(self, k: str, i: int) -> int:
        """Of a variable in it."""
        return self.at(i).graph.variables[k].nbytes
