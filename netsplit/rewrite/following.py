"""How far a cut reaches: operators before it that can be cut alike, with nothing put together.

    x ─► [a] ─► [gelu] ─► [b] ─► y      from what b sums over, backwards: gelu by columns, a by columns

An axis lies in each tensor in its own place: heads are steps of four elements there, and one here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush

from netsplit.graph.arguments import Reference
from netsplit.graph.ir import Graph, once_of
from netsplit.rewrite.emitter import require_operators
from netsplit.rewrite.in_place import out_of_place
from netsplit.rewrite.layouts import layouts_of
from netsplit.rewrite.leaves import ways_to_cut
from netsplit.rewrite.ways import Axis, Cat, SplitCall, Way, Where

__all__ = ["AxisIn", "FollowedCut", "cut_fitting", "following_cuts", "ways_of_graph"]

Ways = Mapping[str, Mapping[Axis, Way]]
"""Operator -> how it can be cut along each of its axes."""


@dataclass(frozen=True)
class AxisIn:
    """Where an axis lies in a tensor: `dim` is [blocks, axis], `scale` elements for each step of the axis."""

    dim: int
    scale: Fraction = Fraction(1)
    blocks: int = 1


@dataclass(frozen=True)
class FollowedCut:
    """An operator along one of its axes, which has `scale` elements for each step of the followed one."""

    call: SplitCall
    axis: Axis
    way: Way
    scale: Fraction = Fraction(1)
    blocks: int = 1

    def reads(self) -> Iterator[tuple[Reference, AxisIn]]:
        """What is cut for it."""
        for place, where in self.way.cut.items():
            yield self.call.reference(place), self._in(where)

    def makes(self) -> dict[str, AxisIn]:
        """What its parts put together make."""
        outputs = zip(self.call.node.outputs, self.way.joined, strict=True)
        return {k: self._in(how.where) for k, how in outputs if k and isinstance(how, Cat)}

    def reads_whole(self) -> set[str]:
        given = (self.call.reference(place) for place in self.call.tensors if place not in self.way.cut)
        return {k for tag, k in given if tag == "var"}

    @property
    def cuts_weights(self) -> bool:
        return any(tag == "init" for (tag, _), _ in self.reads())

    def _in(self, where: Where) -> AxisIn:
        return AxisIn(where.dim, self.scale * where.times, where.blocks * self.blocks)


def cut_fitting(
    call: SplitCall, axis: Axis, way: Way, size: int, known: Mapping[str, AxisIn], by_outputs: bool
) -> FollowedCut | None:
    """How an operator is cut along an axis so that the followed one, of this size, lies as `known` says in
    what it reads, or (`by_outputs`) in what it makes; None: it cannot be, or nothing is known."""
    if by_outputs:
        outputs = zip(call.node.outputs, way.joined, strict=True)
        pairs = [(known[k], how.where if isinstance(how, Cat) else None) for k, how in outputs if k in known]
    else:
        places = ((call.reference(place), place) for place in call.tensors)
        pairs = [(known[k], way.cut.get(place)) for (tag, k), place in places if tag == "var" and k in known]
    cut: FollowedCut | None = None
    for own, where in pairs:
        if where is None or where.dim != own.dim or own.blocks % where.blocks:
            return None
        candidate = FollowedCut(call, axis, way, own.scale / where.times, own.blocks // where.blocks)
        if cut not in (None, candidate):
            return None
        cut = candidate
    if cut is None or way.size != cut.scale * size * cut.blocks or (way.in_one and cut.blocks > 1):
        return None
    return cut


@once_of
def ways_of_graph(graph: Graph) -> tuple[dict[str, SplitCall], Ways]:
    """The calls of all operators, and the ways to cut each."""
    require_operators(graph)
    graph = out_of_place(graph)
    layouts = layouts_of(graph)
    calls = {node.name: SplitCall(node, layouts, graph.initializers) for node in graph}
    return calls, {name: ways_to_cut(call, graph) for name, call in calls.items()}


def following_cuts(graph: Graph, last: FollowedCut, size: int) -> list[FollowedCut]:
    """A cut, and those of all before it that make its pieces, and nothing for others; itself first."""
    calls, ways = ways_of_graph(graph)
    cuts = {last.call.node.name: last}
    wanted = _variables(last) or {}
    whole = last.reads_whole()
    before, known = list[tuple[int, str]](), set[str]()  # makers of what is wanted, the last one first

    def want(variables: Iterable[str]) -> None:
        for k in variables:
            maker = graph.variables[k].producer
            if maker is not None and maker not in known:
                known.add(maker)
                heappush(before, (-graph.position[maker], maker))

    want(wanted)
    while before:
        node = graph.nodes[heappop(before)[1]]
        outputs = [k for k in node.outputs if k]
        readers = {v for k in outputs for v in graph.variables[k].consumers}
        if not readers <= cuts.keys() or whole & {*outputs}:
            continue
        for axis, way in ways[node.name].items():
            cut = cut_fitting(calls[node.name], axis, way, size, wanted, by_outputs=True)
            read = None if cut is None else _variables(cut)
            if cut is None or read is None or any(wanted.get(k, each) != each for k, each in read.items()):
                continue
            cuts[node.name] = cut
            wanted |= read
            whole |= cut.reads_whole()
            want(read)
            break
    return list(cuts.values())


def _variables(cut: FollowedCut) -> dict[str, AxisIn] | None:
    """The variables that are cut for it; None where one would be cut in two ways."""
    read: dict[str, AxisIn] = {}
    for (tag, k), pieces in cut.reads():
        if tag == "var" and read.setdefault(k, pieces) != pieces:
            return None
    return read
