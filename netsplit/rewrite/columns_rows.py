"""Consecutive products in parts: the first by columns, the last by rows, and all between them alike.

    x ─► [a] ─► [gelu] ─► [b] ─► y   becomes   x ─┬─► [a:0] ─► [gelu:0] ─► [b:0] ─┬─► sum ─► y
                                                  └─► [a:1] ─► [gelu:1] ─► [b:1] ─┘

Found from the end: a product cut along what it sums over wants its input in pieces, and so does each operator
that makes these and nothing for others, up to products whose weights alone are cut. Through attention the
pieces are heads.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm

from netsplit.errors import RewriteError, brief
from netsplit.graph.ir import Graph, once_of
from netsplit.rewrite.emitter import require_graph
from netsplit.rewrite.following import FollowedCut, following_cuts, ways_of_graph
from netsplit.rewrite.records import Split, proportioned, proportions_of
from netsplit.rewrite.rewriting import applied
from netsplit.rewrite.ways import Axis, Cat, PartialSum, SplitCall, Way

__all__ = ["CutProducts", "columns_and_rows", "splits_of"]


@dataclass(frozen=True)
class CutProducts:
    """Operators that are cut alike, `size` along the last one, in steps of `unit`: some are heads."""

    cuts: Mapping[str, FollowedCut]  # by the operators' names, in the graph's order
    size: int
    unit: int
    weight_bytes: int  # of the parameters that are cut
    chained: bool  # by columns, then rows; else one product that is alone

    def splits(self, parts: Sequence[float]) -> tuple[Split, ...]:
        """Splits into parts of about these proportions; none if there are fewer steps than parts. Raises
        `RewriteError`: `parts` are no proportions."""
        steps = proportioned(self.size // self.unit, proportions_of(parts))
        return tuple(
            Split(name, cut.axis, tuple(int(cut.scale * self.unit * n) for n in steps), cut.blocks)
            for name, cut in (self.cuts.items() if steps else ())
        )


@once_of
def columns_and_rows(graph: Graph) -> tuple[CutProducts, ...]:
    """Chains of products with weights, then single ones, by falling bytes of weights; no operator twice.

    Single ones, as an embedding or the last layer, are cut by columns and put together. Raises
    `RewriteError`: the graph is not of torch's operators.
    """
    calls, ways = ways_of_graph(graph)
    every = [_chain(graph, last) for last in _closing(calls, ways)]
    chains = sorted(filter(None, every), key=lambda each: -each.weight_bytes)
    cut: set[str] = set()
    chosen = []
    for each in chains:
        if cut.isdisjoint(each.cuts):
            cut.update(each.cuts)
            chosen.append(each)
    single = [_single(graph, calls[name], own) for name, own in ways.items() if name not in cut]
    chosen += sorted(filter(None, single), key=lambda each: -each.weight_bytes)
    return tuple(chosen)


def splits_of(graph: Graph, chosen: Sequence[CutProducts], parts: Sequence[float]) -> tuple[Split, ...]:
    """Splits of those that can be cut into so many parts, in the graph's order.

    Args:
        chosen: of the results of `columns_and_rows` for this graph.
        parts: a proportion for each part.

    Raises:
        RewriteError: `chosen` or `parts` are something else, or none of these can be cut into so many parts.
    """
    require_graph(graph)
    parts = proportions_of(parts)
    steps = max((each.size // each.unit for each in chosen), default=len(parts))
    if steps < len(parts):
        raise RewriteError(
            f"parts is {brief(parts)}, {len(parts)} parts, but the chosen operators can be cut into at most "
            f"{steps}: give no more."
        )
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


def _closing(calls: Mapping[str, SplitCall], ways: Mapping[str, Mapping[Axis, Way]]) -> Iterator[FollowedCut]:
    """Products of a variable and a weight, along what they sum over."""
    for name, call in calls.items():
        for axis, way in ways[name].items():
            sums = all(isinstance(how, PartialSum) for how in way.joined) and way.last is None
            cut = FollowedCut(call, axis, way)
            if isinstance(axis, str) and sums and {tag for (tag, _), _ in cut.reads()} == {"var", "init"}:
                yield cut


def _chain(graph: Graph, last: FollowedCut) -> CutProducts | None:
    """All that is cut alike before a product; None if that has no other product."""
    size, first = last.way.size, following_cuts(graph, last, last.way.size)
    nbytes = {each.call.node.name: _cut_bytes(graph, each) for each in first}
    unit = lcm(*(each.scale.denominator for each in first))
    columns = any(
        nbytes[each.call.node.name] and all(tag == "init" for (tag, _), _ in each.reads())
        for each in first[1:]
    )
    if not columns or size % unit:
        return None
    cuts = {each.call.node.name: each for each in first}
    ordered = {node.name: cuts[node.name] for node in graph if node.name in cuts}
    return CutProducts(ordered, size, unit, sum(nbytes.values()), True)


def _single(graph: Graph, call: SplitCall, ways: Mapping[Axis, Way]) -> CutProducts | None:
    """A product by itself, by columns if possible."""
    best: CutProducts | None = None
    for axis, way in ways.items():
        cut = FollowedCut(call, axis, way)
        nbytes = _cut_bytes(graph, cut)
        puts_together = all(isinstance(how, Cat) for how in way.joined)
        if nbytes and (best is None or puts_together):
            best = CutProducts({call.node.name: cut}, way.size, 1, nbytes, False)
            if puts_together:
                return best
    return best


def _cut_bytes(graph: Graph, cut: FollowedCut) -> int:
    """Bytes of the matrices among the weights that are cut."""
    weights = [graph.initializers[k] for (tag, k), _ in cut.reads() if tag == "init"]
    return sum(each.nbytes for each in weights if each.is_parameter and len(each.shape) > 1)
