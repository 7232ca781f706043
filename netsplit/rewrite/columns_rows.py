"""Consecutive products in parts: the first by columns, the last by rows, and all between them alike.

    x ─► [a] ─► [gelu] ─► [b] ─► y   becomes   x ─┬─► [a:0] ─► [gelu:0] ─► [b:0] ─┬─► sum ─► y
                                                  └─► [a:1] ─► [gelu:1] ─► [b:1] ─┘

Found from the end: of a product that can be cut along what it sums over, what it reads is wanted in pieces.
So is what an operator reads that makes these pieces and nothing for others, up to products whose weights
alone are cut. Through attention the pieces are heads. Nothing is put together in between.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from netsplit.errors import RewriteError, brief
from netsplit.graph.arguments import references
from netsplit.graph.ir import Graph, once_of
from netsplit.rewrite.emitter import require_graph, require_operators
from netsplit.rewrite.layouts import layouts_of
from netsplit.rewrite.leaves import ways_to_cut
from netsplit.rewrite.records import Split, all_are, proportioned, proportions_of
from netsplit.rewrite.rewriting import applied
from netsplit.rewrite.ways import Axis, Cat, PartialSum, Place, SplitCall, Way

__all__ = ["CutProducts", "columns_and_rows", "splits_of"]


@dataclass(frozen=True)
class _AxisPieces:
    """Where the chain's axis lies in a tensor: dimension `dim` is [blocks, pieces], `scale` elements for each
    of the last product's."""

    dim: int
    scale: Fraction
    blocks: int


@dataclass(frozen=True)
class _AxisCut:
    axis: Axis
    scale: Fraction  # elements of it for each of the last product's
    blocks: int


@dataclass(frozen=True)
class CutProducts:
    """Operators that are cut alike, `size` along the last one, in steps of `unit`: some are heads."""

    cuts: Mapping[str, _AxisCut]  # by the operators' names, in the graph's order
    size: int
    unit: int
    weight_bytes: int  # of the parameters that are cut
    chained: bool  # by columns, then rows; else one product that is alone

    def splits(self, parts: Sequence[float]) -> tuple[Split, ...]:
        """Into parts of about these proportions; none, where there are fewer steps than parts.

        Raises:
            RewriteError: `parts` are no proportions.
        """
        steps = proportioned(self.size // self.unit, proportions_of(parts))
        if not steps:
            return ()
        sizes = [each * self.unit for each in steps]
        return tuple(
            Split(name, cut.axis, tuple(int(cut.scale * size) for size in sizes), cut.blocks)
            for name, cut in self.cuts.items()
        )


def columns_and_rows(graph: Graph) -> tuple[CutProducts, ...]:
    """All that products with weights can be cut in, no operator twice, most bytes of weights first.

    Chains come before products that are alone, as an embedding or the last layer: these are cut by columns,
    and what they make is put together.

    Raises:
        RewriteError: it is no graph, or not of torch's operators.
    """
    require_graph(graph)
    return _columns_and_rows(graph)


@once_of
def _columns_and_rows(graph: Graph) -> tuple[CutProducts, ...]:
    require_operators(graph)
    layouts = layouts_of(graph)
    calls = {node.name: SplitCall(node, layouts, graph.initializers) for node in graph}
    ways = {name: ways_to_cut(call, graph) for name, call in calls.items()}
    every = [_chain(graph, calls, ways, name, axis) for name, axis in _closing(calls, ways)]
    chains = sorted(filter(None, every), key=lambda each: -each.weight_bytes)
    taken: set[str] = set()
    chosen = []
    for each in chains:
        if taken.isdisjoint(each.cuts):
            taken.update(each.cuts)
            chosen.append(each)
    single = [_single(graph, calls[name], own) for name, own in ways.items() if name not in taken]
    chosen += sorted(filter(None, single), key=lambda each: -each.weight_bytes)
    return tuple(chosen)


def splits_of(graph: Graph, chosen: Sequence[CutProducts], parts: Sequence[float]) -> tuple[Split, ...]:
    """In the graph's order, of those of these that can be cut in so many parts.

    Args:
        chosen: of what `columns_and_rows` answers of this graph.
        parts: a proportion for each part.

    Raises:
        RewriteError: `chosen` or `parts` are something else, or none of these can be cut in so many parts.
    """
    require_graph(graph)
    parts = proportions_of(parts)
    _check_chosen(graph, chosen, parts)
    left = list(chosen)
    while left:
        splits = {split.node: split for each in left for split in each.splits(parts)}
        ordered = tuple(splits[node.name] for node in graph if node.name in splits)
        try:
            applied(graph, (*graph.rewrites, *ordered))  # is kept, for whoever takes these
        except RewriteError as refusal:
            kept = [each for each in left if refusal.operator not in each.cuts]
            left = kept if len(kept) < len(left) else []
            continue
        return ordered
    return ()


def _check_chosen(graph: Graph, chosen: object, parts: Sequence[float]) -> None:
    """Raises as `splits_of`."""
    if not all_are(chosen, lambda each: isinstance(each, CutProducts)):
        raise RewriteError(
            f"chosen is {brief(chosen)}: give some of what columns_and_rows answers, in a list."
        )
    known = columns_and_rows(graph)
    strange = next((each for each in chosen if each not in known), None)
    if strange is not None:
        raise RewriteError(
            f"chosen cuts {brief([*strange.cuts])}, which columns_and_rows does not answer of this graph: "
            "give some of what it answers."
        )
    steps = max((each.size // each.unit for each in chosen), default=len(parts))
    if steps < len(parts):
        raise RewriteError(
            f"parts is {brief(parts)}, {len(parts)} of them, but nothing that was chosen can be cut in more "
            f"than {steps}: give no more than that."
        )


def _closing(
    calls: Mapping[str, SplitCall], ways: Mapping[str, Mapping[Axis, Way]]
) -> Iterator[tuple[str, Axis]]:
    """Products of a variable and a weight, and what they sum over."""
    for name, call in calls.items():
        for axis, way in ways[name].items():
            sums = all(isinstance(how, PartialSum) for how in way.joined) and way.last is None
            tags = {tag for tag, _ in (_reference(call, place) for place in way.cut)}
            if isinstance(axis, str) and sums and tags == {"var", "init"}:
                yield name, axis


def _chain(
    graph: Graph,
    calls: Mapping[str, SplitCall],
    ways: Mapping[str, Mapping[Axis, Way]],
    last: str,
    axis: Axis,
) -> CutProducts | None:
    """All that is cut alike before a product; None where no other product is."""
    size = ways[last][axis].size
    cuts = {last: _AxisCut(axis, Fraction(1), 1)}
    wanted = _read_in_pieces(calls[last], ways[last][axis], cuts[last]) or {}
    whole = _read_whole(calls[last], ways[last][axis])
    nbytes, unit, columns = _cut_bytes(graph, calls[last], ways[last][axis]), 1, 0
    for node in reversed(list(graph)[: graph.position[last]]):
        made = [k for k in node.outputs if k]
        readers = {v for k in made for v in graph.variables[k].consumers}
        if not any(k in wanted for k in made) or not readers <= cuts.keys() or whole & {*made}:
            continue
        for own_axis, way in ways[node.name].items():
            cut = _makes(calls[node.name], own_axis, way, wanted, size)
            read = None if cut is None else _read_in_pieces(calls[node.name], way, cut)
            if cut is None or read is None or any(wanted.get(k, each) != each for k, each in read.items()):
                continue
            cuts[node.name] = cut
            wanted |= read
            whole |= _read_whole(calls[node.name], way)
            unit = lcm(unit, cut.scale.denominator)
            own = _cut_bytes(graph, calls[node.name], way)
            nbytes, columns = nbytes + own, columns + bool(own and not read)
            break
    if not columns or size % unit:
        return None
    ordered = {node.name: cuts[node.name] for node in graph if node.name in cuts}
    return CutProducts(ordered, size, unit, nbytes, True)


def _makes(
    call: SplitCall, axis: Axis, way: Way, wanted: Mapping[str, _AxisPieces], size: int
) -> _AxisCut | None:
    """How the operator is cut along this axis so that it makes the wanted pieces; None: it makes others."""
    cut: _AxisCut | None = None
    for k, how in zip(call.node.outputs, way.joined, strict=True):
        pieces = wanted.get(k)
        if pieces is None:
            continue
        if not isinstance(how, Cat) or how.where.dim != pieces.dim or pieces.blocks % how.where.blocks:
            return None
        blocks, scale = pieces.blocks // how.where.blocks, pieces.scale / how.where.times
        own = _AxisCut(axis, scale, blocks)
        if way.size != scale * size * blocks or (way.in_one and blocks > 1) or cut not in (None, own):
            return None
        cut = own
    return cut


def _read_in_pieces(call: SplitCall, way: Way, cut: _AxisCut) -> dict[str, _AxisPieces] | None:
    """The variables that are cut for it; None where one would be in two ways."""
    read: dict[str, _AxisPieces] = {}
    for place, where in way.cut.items():
        tag, k = _reference(call, place)
        pieces = _AxisPieces(where.dim, cut.scale * where.times, where.blocks * cut.blocks)
        if tag == "var" and read.setdefault(k, pieces) != pieces:
            return None
    return read


def _read_whole(call: SplitCall, way: Way) -> set[str]:
    references_ = [_reference(call, place) for place in call.tensors if place not in way.cut]
    return {k for tag, k in references_ if tag == "var"}


def _single(graph: Graph, call: SplitCall, ways: Mapping[Axis, Way]) -> CutProducts | None:
    """A product by itself, by columns where it has some."""
    best: CutProducts | None = None
    for axis, way in ways.items():
        nbytes = _cut_bytes(graph, call, way)
        puts_together = all(isinstance(how, Cat) for how in way.joined)
        if nbytes and (best is None or puts_together):
            best = CutProducts({call.node.name: _AxisCut(axis, Fraction(1), 1)}, way.size, 1, nbytes, False)
            if puts_together:
                return best
    return best


def _cut_bytes(graph: Graph, call: SplitCall, way: Way) -> int:
    """Of matrices among the weights that are cut."""
    cut = (_reference(call, place) for place in way.cut)
    weights = [graph.initializers[k] for tag, k in cut if tag == "init"]
    return sum(each.nbytes for each in weights if each.is_parameter and len(each.shape) > 1)


def _reference(call: SplitCall, place: Place) -> tuple[str, str]:
    ((tag, name),) = references(call.template(place))
    return tag, name
