"""Replicas whose states are in slices: what is gathered before which computation, and summed after which.

    optimizer    whole parameters everywhere;  gradients ─Scatter─► slices, step, ─Gather─► parameters
    gradients    the same; a segment's gradients are summed as soon as its last backward is over
    parameters   slices alone;  ─Gather─► Forward, Backward ─Scatter─► gradients of the slice

These are ZeRO's three stages (Rajbhandari et al., SC 2020), the last also FSDP's (Zhao et al., VLDB 2023).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from netsplit.graph.ir import INITIALIZER, Graph
from netsplit.graph.storage import storage_of
from netsplit.placement.placement import Shard
from netsplit.program.instructions import Backward, BackwardPart, Forward, Gather, Program, Segment
from netsplit.program.slices import Bundle, ranked

__all__ = ["BundleTurns", "Work", "bundles_of", "bundles_used"]

_LEAST, _MOST = 2**20, 2**25  # bytes of what is summed or gathered at once

Work = tuple[int, int, BackwardPart | None]
"""Segment, micro-batch, part of the backward; None: the forward."""


def bundles_of(
    graph: Graph,
    segments: Sequence[Segment],
    holders: Mapping[str, tuple[str, ...]],
    shards: Sequence[Shard],
    ranks: Sequence[str],
    like: Sequence[Bundle] = (),
) -> tuple[Bundle, ...]:
    """All that the devices of a shard have in common, or of it what the same segments read.

    Where whole parameters are not kept, those that are not trained are in slices, too.

    Args:
        like: of the program by which devices hold what they hold, where that is another.
    """
    known = {k: frozenset(bundle.devices) for bundle in like for k in bundle.names}
    readers: dict[str, set[int]] = {}
    for segment in segments:
        for name in segment.nodes:
            for k in graph.nodes[name].initializers:
                readers.setdefault(k, set()).add(segment.index)
        for k in segment.inputs:  # views of parameters, which another segment of the device made
            root = storage_of(graph, k)
            if root.startswith(INITIALIZER):
                readers.setdefault(root.removeprefix(INITIALIZER), set()).add(segment.index)
    bundles = []
    for shard in shards:
        together: dict[tuple[int, ...], list[str]] = {}
        for k, own in graph.initializers.items():
            sliced = own.requires_grad or (own.is_parameter and shard.level == "parameters")
            having = known.get(k) if like else frozenset(holders.get(k, ()))
            if sliced and k in readers and having == frozenset(shard.devices):
                key = () if shard.level == "optimizer" else tuple(sorted(readers[k]))
                together.setdefault(key, []).append(k)
        for key, every in together.items():
            devices = ranked(shard.devices, ranks)
            for names in _buckets(graph, every):
                trained = any(graph.initializers[k].requires_grad for k in names)
                nbytes = sum(graph.initializers[k].nbytes for k in names)
                bundles.append(Bundle(devices, names, shard.level, key, trained, nbytes))
    return tuple(bundles)


def _buckets(graph: Graph, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Of so few bytes that what is sent is small beside what is kept; small ones go together."""
    sizes = {k: graph.initializers[k].nbytes for k in names}
    limit = min(max(sum(sizes.values()) // 8, _LEAST), _MOST)
    bucket: list[str] = []
    nbytes = 0
    for k, own in sorted(sizes.items(), key=lambda item: item[1] > limit):
        if bucket and nbytes + own > limit:
            yield tuple(bucket)
            bucket, nbytes = [], 0
        bucket.append(k)
        nbytes += own
    yield tuple(bucket)


class BundleTurns:
    """Walks a program's work in its global order, and says what is gathered before it and summed after it.

    A bundle is gathered on all of its devices when the first of them needs it, as far ahead of that as the
    bytes of one segment allow; a device forgets it after a computation unless its next one needs it, too.
    It is summed once all of its devices have gradients of it, so that none has more than one micro-batch's.

    Args:
        work: forwards and backwards, in the program's order.
    """

    def __init__(
        self,
        bundles: Sequence[Bundle],
        segments: Sequence[Segment],
        work: Sequence[Work],
        trained: frozenset[int],
    ) -> None:
        self.bundles, self.work = bundles, work
        self.device = [segments[s].on(i) for s, i, _ in work]
        self.reading: dict[int, list[int]] = {}  # segment -> bundles that it computes with
        self.giving: dict[int, list[int]] = {}  # segment -> bundles of whose gradients it makes some
        for b, bundle in enumerate(bundles):
            for s in bundle.segments:
                if bundle.level == "parameters":
                    self.reading.setdefault(s, []).append(b)
                if bundle.trained and s in trained:
                    self.giving.setdefault(s, []).append(b)
        self.there: set[tuple[str, int]] = set()  # device, bundle
        self.ahead = max((self._nbytes(each) for each in self.reading.values()), default=0)
        self.next = self._next()
        self.left: Counter[tuple[int, str]] = Counter()  # bundle, device -> backwards to come
        for at, (s, _, part) in enumerate(work):
            if part in ("whole", "weight"):
                self.left.update((b, self.device[at]) for b in self.giving.get(s, ()))
        self.unsummed: Counter[tuple[int, str]] = Counter()  # bundle, device -> backwards since the last sum
        givers = {(b, self.device[at], s) for at, (s, *_) in enumerate(work) for b in self.giving.get(s, ())}
        self.each = Counter((b, device) for b, device, _ in givers)
        """Bundle, device -> backwards of one micro-batch that give gradients of it."""

    def gathered(self, at: int) -> Iterator[int]:
        """Bundles to be gathered before a piece of work: its own, and those of what its device does next, as
        many as have the bytes of a segment, at least those of one."""
        device, ahead = self.device[at], set[int]()
        place: int | None = at
        while place is not None:
            new = [b for b in self._read(place) if (device, b) not in self.there]
            for b in new:
                self.there |= {(each, b) for each in self.bundles[b].devices}
                yield b
            if place != at:
                ahead.update(self._read(place))
                if self._nbytes(ahead) >= self.ahead:
                    return
            place = self.next[place]

    def summed(self, at: int) -> Iterator[int]:
        """Bundles to be summed after a piece of work."""
        device, (s, _, part) = self.device[at], self.work[at]
        later = self.next[at]
        kept = () if later is None else self._read(later)
        self.there -= {(device, b) for b in self._read(at) if b not in kept}
        if part not in ("whole", "weight"):
            return
        for b in self.giving.get(s, ()):
            self.left[b, device] -= 1
            self.unsummed[b, device] += 1
            if self._due(b):
                for each in self.bundles[b].devices:
                    self.unsummed[b, each] = 0
                yield b

    def _nbytes(self, bundles: Iterable[int]) -> int:
        return sum(self.bundles[b].nbytes for b in bundles)

    def _due(self, b: int) -> bool:
        bundle = self.bundles[b]
        if bundle.level == "gradients":
            return not any(self.left[b, each] for each in bundle.devices)
        return all(
            self.unsummed[b, each] >= self.each[b, each] or not self.left[b, each] for each in bundle.devices
        )

    def _read(self, at: int) -> list[int]:
        s, _, part = self.work[at]
        return [] if part == "weight" else self.reading.get(s, [])

    def _next(self) -> list[int | None]:
        """Of each piece of work the next one of its device."""
        later: dict[str, int] = {}
        after: list[int | None] = [None] * len(self.work)
        for at in reversed(range(len(self.work))):
            after[at] = later.get(self.device[at])
            later[self.device[at]] = at
        return after


def bundles_used(
    program: Program, device: str
) -> tuple[dict[int, tuple[int, ...]], dict[int, tuple[int, ...]]]:
    """Segment -> bundles that must be whole for it; instruction -> bundles that go after it.

    A bundle goes after a computation unless the next one that needs it comes before it is gathered again.
    """
    reading: dict[int, tuple[int, ...]] = {}
    for b, bundle in enumerate(program.bundles):
        if bundle.level == "parameters" and device in bundle.devices:
            for s in bundle.segments:
                reading[s] = (*reading.get(s, ()), b)
    going: dict[int, tuple[int, ...]] = {}
    needed: set[int] = set()  # before they are gathered again
    instructions = program.instructions[device] if reading else ()
    for index in reversed(range(len(instructions))):
        ins = instructions[index]
        if isinstance(ins, Gather):
            needed.discard(ins.bundle)
        elif isinstance(ins, Forward) or (isinstance(ins, Backward) and ins.part != "weight"):
            used = reading.get(ins.segment, ())
            going[index] = tuple(b for b in used if b not in needed)
            needed.update(used)
    return reading, {index: each for index, each in going.items() if each}
