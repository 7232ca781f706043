"""Which parts of a segment are computed again before their backward, and where one part ends.

    segment   a b c d e f g h i j      recomputed: d e f g h i
    parts     └kept┘└─again─┘└again┘└kept┘

A recomputed part keeps its inputs for every micro-batch in flight, its activations for one at a time. Many
parts keep much between them, few parts have much inside: a device's runs of recomputed nodes are cut where
the sum is least (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 3). Schedules see
only segments; the compiler takes their parts in order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from netsplit.graph.arguments import storage_bytes, storage_of
from netsplit.graph.ir import MOVE, TRANSFER, Graph, Node
from netsplit.graph.quotient import joined, units_in_order
from netsplit.profile.roofline import operator_class
from netsplit.program.instructions import Backward, Forward, Instruction, Segment
from netsplit.program.schedules import Compute, Pipeline
from netsplit.program.schedules.base import Recompute
from netsplit.program.segments import segment_of

__all__ = [
    "SegmentBytes",
    "SegmentParts",
    "in_flight",
    "in_parts",
    "pieces_in_order",
    "recomputed_by_kind",
    "whole",
    "without_idle_recomputation",
]

_BLOCK = re.compile(r".*?\b\d+\b")
_EVERY, _LIMITS = 64, 24  # bounds on the largest inside to try
_PLACES = 48  # most candidate places for cuts in a run

Table = NDArray[np.float64]


@dataclass(frozen=True)
class SegmentParts:
    """Segments cut into parts, which replace them in a program."""

    segments: tuple[Segment, ...]
    of: tuple[tuple[int, ...], ...]  # segment, or stage, that a schedule knows -> its parts, in order
    again: frozenset[int] = frozenset()  # parts that are recomputed

    def in_stages(self, stages: Sequence[Sequence[int]]) -> SegmentParts:
        """The parts of all segments of each stage (`segments.segments_together`)."""
        return replace(self, of=tuple(tuple(part for s in stage for part in self.of[s]) for stage in stages))


def whole(segments: Sequence[Segment]) -> SegmentParts:
    return SegmentParts(tuple(segments), tuple((segment.index,) for segment in segments))


def in_parts(
    graph: Graph,
    segments: Sequence[Segment],
    recomputed: Collection[str],
    flights: Mapping[int, int],
    at_blocks: bool = False,
) -> SegmentParts:
    """Cut segments of a graph with transfers into parts that are wholly recomputed or wholly kept.

    Args:
        graph: with transfer nodes.
        recomputed: names of nodes; what cannot be computed apart is recomputed where all its nodes are named.
        flights: micro-batches of each segment that are in flight (`in_flight`).
        at_blocks: a part is a block of the model (`recomputed_by_kind`), where blocks have several products.
    """
    pieces = pieces_in_order(graph, segments)
    runs = {segment.index: _runs(pieces[segment.index], recomputed) for segment in segments}
    places: dict[tuple[int, int], list[int]] = {}
    for segment in segments if at_blocks else ():
        s = segment.index
        places |= {(s, low): _blocks(graph, pieces[s], low, high) for low, high, again in runs[s] if again}
    places = {key: cuts for key, cuts in places.items() if cuts}
    for device in dict.fromkeys(segment.device for segment in segments):
        left = [
            (segment, low, high)
            for segment in segments
            for low, high, again in runs[segment.index]
            if again and segment.device == device and (segment.index, low) not in places
        ]
        places |= _places_of_cuts(graph, left, pieces, flights)
    parts: list[Segment] = []
    of: list[tuple[int, ...]] = []
    again: set[int] = set()
    for segment in segments:
        first = len(parts)
        for low, high, anew in runs[segment.index]:
            for start, end in pairwise(places.get((segment.index, low), [low, high])):
                again |= {len(parts)} if anew else set()
                names = [name for piece in pieces[segment.index][start:end] for name in piece]
                part = segment_of(graph, len(parts), segment.device, names)
                parts.append(
                    replace(
                        segment, index=part.index, nodes=part.nodes, inputs=part.inputs, outputs=part.outputs
                    )
                )
        of.append(tuple(range(first, len(parts))))
    return SegmentParts(tuple(parts), tuple(of), frozenset(again))


def recomputed_by_kind(graph: Graph, recompute: Recompute) -> tuple[frozenset[str], frozenset[str]]:
    """What `schedule.recompute` has computed again, and of that the nodes whose results are kept.

    With "selective" these are attentions, and of each block's products the first, the third, and so on; a
    block is what has a module's path up to its first number. Nothing that moves tensors for parts is done
    again; what alike ranks move (`MOVE`) is, but for sums where it is selective.

    Source: Liang et al., TorchTitan, ICLR 2025, section 2.1.4 (selective activation checkpointing, `op`).
    """
    if recompute not in ("selective", "full"):
        return frozenset(), frozenset()
    moving = {n.name for n in graph if n.part is not None and n.part.moves and not n.op.startswith(MOVE)}
    again = [n for n in graph if n.op != TRANSFER and n.name not in moving]
    kept, products = set[str](), Counter[tuple[str, tuple[int, ...]]]()
    together = {name for unit in graph.units for name in unit}  # of which a later one may write the result
    for node in again if recompute == "selective" else ():
        kind = operator_class(graph, node)
        key = (_block_of(node), node.part.place if node.part is not None else ())
        product = _is_product(kind)
        products[key] += product
        summed = node.op in (f"{MOVE}all_reduce", f"{MOVE}reduce_scatter")
        if node.name not in together and (kind == "attention" or summed or (product and products[key] % 2)):
            kept.add(node.name)
    return frozenset(node.name for node in again), frozenset(kept)


def pieces_in_order(graph: Graph, segments: Iterable[Segment]) -> list[list[tuple[str, ...]]]:
    """Indivisible pieces of every segment in a runnable order: units, and the model's own checkpoints."""
    checkpoints: dict[str, list[str]] = {}
    for node in graph:
        if node.checkpoint:
            checkpoints.setdefault(node.checkpoint, []).append(node.name)
    segment_of = {name: segment.index for segment in segments for name in segment.nodes}
    apart = [
        [name for name in names if segment_of.get(name) == s]
        for names in checkpoints.values()
        for s in {segment_of.get(name) for name in names}
    ]
    whole = replace(graph, units=joined(graph, [*graph.units, *apart])) if apart else graph
    order = units_in_order(whole, lambda unit: graph.position[unit[0]])
    if sum(map(len, order)) < len(graph):  # checkpoints would make a cycle
        order = units_in_order(graph, lambda unit: graph.position[unit[0]])
    pieces: list[list[tuple[str, ...]]] = [[] for _ in segments]
    for unit in order:
        if unit[0] in segment_of:
            pieces[segment_of[unit[0]]].append(unit)
    return pieces


def without_idle_recomputation(instructions: list[Instruction]) -> tuple[Instruction, ...]:
    """Keep activations of segments whose backward the device computes next."""
    following: Forward | Backward | None = None
    kept: list[Instruction] = []
    for ins in reversed(instructions):
        if (
            isinstance(ins, Forward)
            and ins.recompute
            and isinstance(following, Backward)
            and (following.segment, following.microbatch) == (ins.segment, ins.microbatch)
        ):
            ins = replace(ins, recompute=False)
        if isinstance(ins, Forward | Backward):
            following = ins
        kept.append(ins)
    return tuple(reversed(kept))


class SegmentBytes:
    """Bytes that a run of a segment's pieces saves inside, and those that it hands on.

    Args:
        pieces: of the segment, in order.
        between: which of them it is about.

    Attributes:
        places: [K + 1] between which pieces a part may begin or end, as numbers of the first piece after it.
        inside: [K + 1, K + 1] bytes that stay for the backward within the part from one place to another.
        handed: [K + 1, K + 1] bytes made in that part and read after it.
        saved: [K + 1] bytes that stay, of all that is made before a place.
        loose: [K + 1] bytes that are read over a place and that no backward keeps.
    """

    def __init__(
        self,
        graph: Graph,
        segment: Segment,
        pieces: Sequence[tuple[str, ...]],
        own: dict[str, int],
        between: tuple[int, int] | None = None,
        most: int = _PLACES,
    ) -> None:
        low, high = between or (0, len(pieces))
        made, last, kept, beside = _lifetimes(graph, segment, pieces)
        roots = [root for root, p in made.items() if low <= p < high and own[root]]
        first = np.array([made[root] - low for root in roots], np.int64)
        until = np.array([min(last[root], high) - low for root in roots], np.int64)
        sizes = np.array([own[root] for root in roots], np.float64)
        stays = np.array([root in kept for root in roots], bool)
        self.places = _places(high - low, first, until, sizes, most)
        extra = np.concatenate([[0.0], np.cumsum(beside[low:high])])[self.places]
        count = len(self.places)
        cells = np.searchsorted(self.places, first, "right") - 1
        ends = np.where(until >= high - low, count - 1, np.searchsorted(self.places, until, "right") - 1)
        every, saved = np.zeros((count, count)), np.zeros((count, count))
        np.add.at(every, (cells, ends), sizes)
        np.add.at(saved, (cells[stays], ends[stays]), sizes[stays])
        every, saved = _sums(every), _sums(saved)
        rows = np.arange(count)
        self.inside: Table = saved[count, :count] - saved[:count, :count] + (extra[None, :] - extra[:, None])
        total, diagonal = every[:count, count], every[rows, rows]
        self.handed: Table = (total[None, :] - total[:, None]) - (diagonal[None, :] - every[:count, :count])
        self.saved: Table = saved[:count, count] + extra
        unsaved = every - saved
        self.loose: Table = unsaved[rows, count] - unsaved[rows, rows]
        self.places = self.places + low

    def cut(self, limit: float) -> tuple[float, list[int]]:
        """Places where the run is cut so that parts hand on the fewest bytes, and these bytes: parts with at
        most `limit` inside. Infinite bytes: there are no such parts."""
        count = len(self.places)
        allowed = np.where(self.inside <= limit, self.handed, np.inf)
        least, before = np.full(count, np.inf), np.zeros(count, np.int64)
        least[0] = 0.0
        for place in range(1, count):
            ways = least[:place] + allowed[:place, place]
            before[place] = int(np.argmin(ways))
            least[place] = ways[before[place]]
        cuts = [count - 1]
        while cuts[-1]:
            cuts.append(int(before[cuts[-1]]))
        return float(least[-1]), [int(self.places[place]) for place in reversed(cuts)]


def _runs(pieces: Sequence[tuple[str, ...]], recomputed: Collection[str]) -> list[tuple[int, int, bool]]:
    """Pieces of a segment, from one to before another, that are all recomputed or all kept."""
    anew = [all(name in recomputed for name in piece) for piece in pieces]
    grouped = [(again, list(run)) for again, run in groupby(range(len(pieces)), anew.__getitem__)]
    return [(run[0], run[-1] + 1, again) for again, run in grouped]


def _blocks(graph: Graph, pieces: Sequence[tuple[str, ...]], low: int, high: int) -> list[int]:
    """Where a run goes from one block to another; nothing where blocks have but one product."""
    own = [_block_of(graph.nodes[piece[0]]) for piece in pieces[low:high]]
    nodes = (graph.nodes[name] for piece in pieces[low:high] for name in piece)
    products = sum(_is_product(operator_class(graph, node)) for node in nodes if _block_of(node))
    if products < 2 * len({*own} - {""}) or not any(own):
        return []
    return [low, *(low + i for i, (one, other) in enumerate(pairwise(own), 1) if one != other), high]


def _block_of(node: Node) -> str:
    """The module's path up to its first number; "": it is in no block."""
    block = _BLOCK.match(node.module)
    return block.group() if block else ""


def _is_product(kind: str) -> bool:
    return kind == "matmul" or kind.endswith("convolution")


def _places_of_cuts(
    graph: Graph,
    runs: Sequence[tuple[Segment, int, int]],
    pieces: Sequence[Sequence[tuple[str, ...]]],
    flights: Mapping[int, int],
) -> dict[tuple[int, int], list[int]]:
    """Segment and its run's first piece -> where the run is cut, of those of one device that are recomputed:
    what all parts hand on, of micro-batches in flight, and the largest inside, of one, are least together."""
    own = storage_bytes(graph)
    tables = {
        (segment.index, low): SegmentBytes(graph, segment, pieces[segment.index], own, (low, high))
        for segment, low, high in runs
    }
    inside = [each.inside[np.triu_indices(len(each.places), 1)] for each in tables.values()]
    sizes = np.unique(np.concatenate(inside or [np.zeros(0)]))
    best, places = np.inf, dict[tuple[int, int], list[int]]()
    steps = _EVERY if len(sizes) <= _EVERY else _LIMITS
    for limit in sizes[np.unique(np.linspace(0, len(sizes) - 1, steps).astype(int))][::-1] if tables else ():
        cuts = {key: each.cut(limit) for key, each in tables.items()}
        nbytes = limit + sum(flights[s] * handed for (s, _), (handed, _) in cuts.items())
        if nbytes < best:
            best, places = nbytes, {key: each for key, (_, each) in cuts.items()}
    return places


def _lifetimes(
    graph: Graph, segment: Segment, pieces: Sequence[tuple[str, ...]]
) -> tuple[dict[str, int], dict[str, int], set[str], list[int]]:
    """Storage -> its first and last piece; saved storages; other bytes of each piece."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    kept: set[str] = set()
    beside = []
    for number, piece in enumerate(pieces):
        nodes = [graph.nodes[name] for name in piece]
        for node in nodes:
            for k in filter(None, node.outputs):
                first.setdefault(storage_of(graph, k), number)
            last.update((storage_of(graph, k), number) for k in (*node.inputs, *filter(None, node.outputs)))
            kept.update(storage_of(graph, k) for k in node.saved)
        beside.append(sum(node.saved_bytes for node in nodes))
    last.update((storage_of(graph, k), len(pieces)) for k in segment.outputs)
    for k in segment.inputs:
        first.pop(storage_of(graph, k), None)
    return first, last, kept, beside


def _places(
    count: int, first: NDArray[np.int64], until: NDArray[np.int64], sizes: Table, most: int
) -> NDArray[np.int64]:
    """[K + 1] both ends, and between them the narrowest place of each stretch of equal bytes."""
    if count <= most:
        return np.arange(count + 1)
    steps = np.zeros(count + 2)
    np.add.at(steps, first + 1, sizes)
    np.add.at(steps, until + 1, -sizes)
    crossing = np.cumsum(steps)[: count + 1]
    weight = 1.0 + np.bincount(first, sizes, count) * count / max(float(sizes.sum()), 1.0)
    stretch = np.floor(np.cumsum(weight) / weight.sum() * most * (1 - 1e-12)).astype(int)
    chosen = {0, count}
    for number in range(most):
        inner = np.flatnonzero(stretch == number) + 1
        inner = inner[inner < count]
        if len(inner):
            chosen.add(int(inner[np.argmin(crossing[inner])]))
    return np.array(sorted(chosen), np.int64)


def _sums(table: Table) -> Table:
    return np.pad(table.cumsum(0).cumsum(1), ((1, 0), (1, 0)))


def in_flight(order: Iterable[Compute], pipeline: Pipeline) -> list[int]:
    """Most micro-batches between forward and backward on any of a segment's devices, by segment."""
    now: Counter[tuple[int, str]] = Counter()
    most = [1] * len(pipeline)
    for phase, s, i in order:
        if s in pipeline.trained and phase != "weight":
            at = s, pipeline.on(s, i)
            now[at] += 1 if phase == "forward" else -1
            most[s] = max(most[s], now[at])
    return most
