"""Where the left side of a rule is in a graph, and may be replaced.

    calls_of(graph) ── terms of the left side, one after another ──► Match ──record──► Algebra, for a file

What would disappear is read nowhere else and is no output of the graph; weights are read by nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from math import prod
from typing import Any, TypeAlias

import torch

from netsplit.graph.arguments import Reference, decode
from netsplit.graph.ir import Graph
from netsplit.graph.operators import resolve, touching_initializers
from netsplit.rewrite.algebra.patterns import RuleCall, RuleCalls, Shape, calls_of, shape_of, written
from netsplit.rewrite.algebra.rule import Algebra, Operator, Ref, Rule, Term

__all__ = ["Match", "match_of", "matches"]

MOST = 256
"""Matches of one rule, at most."""
_DIMS = ("dim", "first", "second")
_ROWS = " rows"


@dataclass(frozen=True, eq=False)
class Match:
    """A rule's left side in a graph."""

    rule: Rule
    calls: tuple[RuleCall, ...]  # of each of its terms
    bound: Mapping[str, Reference]  # what its inputs are
    numbers: tuple[Mapping[str, Any], ...] = ()  # parameters of the right side's terms
    shapes: Mapping[Ref, Shape] = field(default_factory=dict)  # of all that the right side reads and makes

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that it replaces, each once."""
        return tuple(dict.fromkeys(name for call in self.calls for name in call.nodes))

    @property
    def kept(self) -> tuple[tuple[str, Ref], ...]:
        """Variables that are read later, and what of the right side each is."""
        computed = [(left, right) for left, right in self.rule.outputs if not isinstance(left, str)]
        return tuple((self.calls[i].outputs[j], right) for (i, j), right in computed)

    @property
    def record(self) -> Algebra:
        reads = tuple((name, *reference) for name, reference in self.bound.items())
        return Algebra(self.rule, tuple(call.node.name for call in self.calls), reads)


def matches(graph: Graph, rules: Sequence[Rule]) -> list[Match]:
    """All ways to apply the rules once, in the order of the rules; at most `MOST` of each.

    Rules that change in how many pieces tensors are match nothing.
    """
    return [match for rule in rules for match in islice(_Matcher(graph, rule).run(), MOST)]


def match_of(graph: Graph, algebra: Algebra, elsewhere: bool = False) -> Match | None:
    """The match of which a record is; None: the graph has none there. `elsewhere`: the record's nodes are the
    graph's, and what it reads is another's but for parameters."""

    def read(record: Algebra) -> set[tuple[str, str, str]]:
        return {each for each in record.reads if not elsewhere or each[1] == "init"}

    there = _Matcher(graph, algebra.rule, algebra.nodes).run()
    return next((match for match in there if read(match.record) == read(algebra)), None)


@lru_cache(maxsize=4096)
def _plan(rule: Rule) -> tuple[tuple[int, ...], Mapping[int, int]]:
    """Left terms in the order in which they are looked for, and terms that may change places with earlier
    ones of the same kind."""
    terms = rule.left
    order = [len(terms) - 1]
    while len(order) < len(terms):
        rest = (i for i in range(len(terms)) if i not in order)
        order.append(max(rest, key=lambda i: _linked(terms, order, i)))
    reads = [ref for term in terms for ref in term.inputs]
    used = {ref[0] for ref in reads if not isinstance(ref, str)}
    alike, first = {}, dict[Any, int]()
    for i, term in enumerate(terms):
        if i in used:
            continue
        own = tuple("*" if reads.count(ref) == term.inputs.count(ref) else ref for ref in term.inputs)
        key = term.op, own, term.parameters
        if key in first:
            alike[i] = first[key]
        first[key] = i
    return tuple(order), alike


def _linked(terms: Sequence[Term], order: Sequence[int], i: int) -> int:
    """How well a term is found from others: as what makes their inputs, or as what reads the same."""
    reads_it = any(ref[0] == i for j in order for ref in terms[j].inputs if not isinstance(ref, str))
    reads = any(not isinstance(ref, str) and ref[0] in order for ref in terms[i].inputs)
    same = any(ref in terms[j].inputs for j in order for ref in terms[i].inputs)
    return 3 * reads_it + 2 * reads + same


_Bound: TypeAlias = dict[Ref, Reference]
"""What is read or made for the rule's inputs and its left terms' outputs, as far as it is known."""


class _Matcher:
    def __init__(self, graph: Graph, rule: Rule, nodes: Sequence[str] = ()) -> None:
        self.graph, self.rule, self.nodes = graph, rule, nodes
        self.order, self.alike = _plan(rule)
        self.index: RuleCalls = calls_of(graph)

    def run(self) -> Iterator[Match]:
        left = self.rule.left
        if left and len(self.nodes) in (0, len(left)) and all(t.op in self.index.by_op for t in left):
            yield from self._from({}, {}, {})

    def _from(
        self, calls: Mapping[int, RuleCall], bound: _Bound, numbers: Mapping[str, Any]
    ) -> Iterator[Match]:
        """All matches that have these calls for the terms of these numbers."""
        if len(calls) == len(self.order):
            match = self._match(calls, bound, numbers)
            if match is not None:
                yield match
            return
        i = self.order[len(calls)]
        for call in self._candidates(i, bound):
            own, known = self._unified(bound, i, call), self._numbers(numbers, self.rule.left[i], call)
            if own is not None and known is not None and self._may_be(i, call, calls):
                yield from self._from({**calls, i: call}, own, known)

    def _candidates(self, i: int, bound: _Bound) -> Sequence[RuleCall]:
        """The fewest calls among which all that fit are."""
        term, best = self.rule.left[i], self.index.by_op[self.rule.left[i].op]
        for ref, (tag, k) in bound.items():
            if ref in term.inputs:
                best = min(best, self.index.readers.get((tag, k), ()), key=len)
            if ref[0] == i:
                best = min(best, self.index.writers.get(k, ()) if tag == "var" else (), key=len)
        wanted = self.nodes[i] if self.nodes else None
        return [each for each in best if each.op == term.op and wanted in (None, each.node.name)]

    def _may_be(self, i: int, call: RuleCall, calls: Mapping[int, RuleCall]) -> bool:
        """Whether its node stands for no other term, and terms that are alike are in the graph's order."""
        position = self.graph.position
        for j, other in calls.items():
            if call.node is other.node:
                return False
            earlier = position[call.node.name] < position[other.node.name]
            if self.alike.get(max(i, j)) == min(i, j) and earlier != (i < j):
                return False
        return True

    def _unified(self, bound: _Bound, i: int, call: RuleCall) -> _Bound | None:
        term, more = self.rule.left[i], dict(bound)
        if len(call.inputs) != len(term.inputs) or len(call.outputs) != self.rule.arity(False, i):
            return None
        outputs = (((i, j), ("var", k)) for j, k in enumerate(call.outputs))
        for ref, reference in (*zip(term.inputs, call.inputs, strict=True), *outputs):
            if more.setdefault(ref, reference) != reference:
                return None
        return more

    def _numbers(self, known: Mapping[str, Any], term: Term, call: RuleCall) -> Mapping[str, Any] | None:
        numbers = dict(known)
        if call.parameters.keys() != dict(term.parameters).keys():
            return None
        for key, value in term.parameters:
            own = call.parameters[key]
            if isinstance(value, str):
                if numbers.setdefault(value, own) != own:
                    return None
            elif key in _DIMS and not self.rule.exact and call.rank != 1:
                if (value == 1) != (own == call.rank - 1) or value not in (0, 1):
                    return None
                if value == 0 and call.rank > 2 and numbers.setdefault(_ROWS, own) != own:
                    return None
            elif own != value:
                return None
        return numbers

    def _match(self, calls: Mapping[int, RuleCall], bound: _Bound, known: Mapping[str, Any]) -> Match | None:
        """The match with its right side; None where it may not be replaced."""
        rule, own = self.rule, tuple(calls[i] for i in range(len(calls)))
        match = Match(rule, own, {name: bound[name] for name in rule.inputs if name in bound})
        names = {value for term in rule.right for _, value in term.parameters if isinstance(value, str)}
        if not (names <= known.keys() and self._may_go(match)):
            return None
        left = {ref: shape_of(self.graph, reference) for ref, reference in bound.items()}
        sizes = {name: (prod(own[:-1]), *own[-1:], 1) for name, own in left.items()}
        if any(sizes[a][d] != sizes[b][e] for (a, d), (b, e) in rule.equal):
            return None
        numbers: list[dict[str, Any]] = []
        for term in rule.right:
            rank = len(left.get(_source(rule, term), (0, 0)))
            numbers.append({key: self._number(key, value, rank, known) for key, value in term.parameters})
        shapes = _right_shapes(rule, left, numbers)
        return None if shapes is None else replace(match, numbers=tuple(numbers), shapes=shapes)

    def _number(self, key: str, value: int | str, rank: int, known: Mapping[str, Any]) -> Any:
        """A number of the right side; rows of a matrix there may be several dimensions of a tensor."""
        if isinstance(value, str):
            return known[value]
        if key not in _DIMS or self.rule.exact or rank == 1:
            return value
        return rank - 1 if value == 1 else 0 if rank == 2 else known.get(_ROWS) or 0

    def _may_go(self, match: Match) -> bool:
        graph, inside = self.graph, set(match.nodes)
        kept = dict(match.kept)
        if len(kept) < len(match.rule.outputs):
            return False
        outputs = set(graph.output_variables)
        gone = [k for name in inside for k in graph.nodes[name].outputs if k and k not in kept]
        if any(k in outputs or not inside.issuperset(graph.variables[k].consumers) for k in gone):
            return False
        if any(isinstance(right, str) and k in outputs for k, right in kept.items()):
            return False
        touching, weights = touching_initializers(graph), list[str]()
        for tag, k in match.bound.values():
            if tag == "init":
                weights.append(k)
                if not inside.issuperset(touching.get(k, ())) or graph.initializers[k].aliases:
                    return False
            elif graph.variables[k].producer in inside:
                return False
        return len(set(weights)) == len(weights)


def _source(rule: Rule, term: Term) -> str:
    """The input of the rule whose rank a term of the right side has: its first, or that of what makes it."""
    ref = term.inputs[0]
    return ref if isinstance(ref, str) else _source(rule, rule.right[ref[0]])


def _right_shapes(
    rule: Rule, left: Mapping[Ref, Shape], numbers: Sequence[Mapping[str, Any]]
) -> dict[Ref, Shape] | None:
    """Shapes of every input and output of the right side's terms, as torch has them without data; None: they
    do not go together. Sizes of a split are those that its readers need, or that the left side has.

    Args:
        left: shapes of the inputs, and of what the left side's terms make.
        numbers: parameters of the right side's terms.
    """
    shapes: dict[Ref, Shape] = {name: left[name] for name in rule.inputs if name in left}
    outputs = {right: left[ref] for ref, right in rule.outputs}

    def size(ref: Ref, dim: int) -> int | None:
        """The size of a dimension, which may be counted from the last; None: no reader says."""
        if ref in shapes or ref in outputs:
            return shapes.get(ref, outputs.get(ref, ()))[dim]
        reads = ((u, p) for u, term in enumerate(rule.right) for p, own in enumerate(term.inputs))
        sizes = (wanted(u, p, dim) for u, p in reads if rule.right[u].inputs[p] == ref)
        return next((own for own in sizes if own is not None), None)

    def wanted(u: int, p: int, dim: int) -> int | None:
        """What a reader needs the size of one of its inputs to be."""
        op, given, out = rule.right[u].op, rule.right[u].inputs, (u, 0)
        if op in ("linear", "matmul", "conv"):
            channel = 1 if op == "conv" else -1
            makes, takes = (1, 0) if op == "matmul" else (0, 1)  # dimensions of the weight
            if p == 0:
                return size(given[1], takes) if dim in (channel, last(given[0])) else size(out, dim)
            return size(out, channel) if p == 2 or dim == makes else size(given[0], channel)
        if op in ("unary", "scale", "add", "mul"):
            return next((shapes[ref][dim] for ref in given if ref in shapes), None) or size(out, dim)
        return size(out, dim) if op == "concat" and dim != numbers[u]["dim"] else None

    def last(ref: Ref) -> int:
        """The last dimension of a part, as of what is split."""
        source = ref if isinstance(ref, str) else rule.right[ref[0]].inputs[0]
        return len(shapes[source]) - 1 if source in shapes else -1

    try:
        for i, term in enumerate(rule.right):
            given, sizes = tuple(shapes[ref] for ref in term.inputs), Shape()
            if term.op == "split":
                dim = numbers[i]["dim"]
                parts = [size((i, j), dim) for j in range(rule.arity(True, i))]
                rest = given[0][dim] - sum(filter(None, parts))
                if parts.count(None) > 1:
                    return None
                sizes = tuple(rest if part is None else part for part in parts)
            output_shapes = _output_shapes(term.op, given, tuple(numbers[i].items()), sizes)
            shapes |= {(i, j): shape for j, shape in enumerate(output_shapes)}
    except (KeyError, IndexError, ValueError, RuntimeError):
        return None
    return shapes if all(shapes.get(right) == shape for right, shape in outputs.items()) else None


@lru_cache(maxsize=1 << 14)
def _output_shapes(
    op: Operator, given: tuple[Shape, ...], numbers: tuple[tuple[str, Any], ...], sizes: Shape
) -> list[Shape]:
    """Raises ValueError, RuntimeError: these cannot be computed with."""
    if op in ("add", "mul", "unary", "scale"):
        if len({*given}) > 1:
            raise ValueError
        return [given[0]]
    if op == "bag":
        return [(given[1][0], given[0][1])]
    kinds = [torch.int64 if op == "embedding" and j else torch.float32 for j in range(len(given))]
    tensors = [torch.empty(x, dtype=kind, device="meta") for x, kind in zip(given, kinds, strict=True)]
    named = [("var", str(j)) for j in range(len(given))]
    ((aten, args, _),) = written(op, named, given, dict(numbers), sizes)
    results = resolve(aten)(*decode(args, lambda tag, k: tensors[int(k)]))
    return [tuple(each.shape) for each in ([results] if isinstance(results, torch.Tensor) else results)]
