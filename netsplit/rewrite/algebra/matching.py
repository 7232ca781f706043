"""Where the left side of a rule is in a graph, and may be replaced.

    calls_of(graph) ── terms of the left side, one after another ──► Match ──record──► Algebra, for a file

What would disappear is read nowhere else and is no output of the graph; weights are read by nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any

from netsplit.graph.arguments import Reference
from netsplit.graph.ir import Graph
from netsplit.graph.operators import touching_initializers
from netsplit.rewrite.algebra.patterns import RuleCall, RuleCalls, Shape, calls_of, shape_of
from netsplit.rewrite.algebra.rule import Algebra, Ref, Rule, Term
from netsplit.rewrite.algebra.shapes import right_shapes

__all__ = ["Match", "match_of", "matches"]

MOST = 256
"""Matches of one rule, at most."""
_DIMS = ("dim", "first", "second")
_ROWS = " rows"


@dataclass(frozen=True, eq=False)
class Match:
    """A rule's left side in a graph.

    Args:
        calls: of each of its terms.
        bound: what its inputs are.
        numbers: parameters of the right side's terms.
        shapes: of all that the right side reads and makes.
    """

    rule: Rule
    calls: tuple[RuleCall, ...]
    bound: Mapping[str, Reference]
    numbers: tuple[Mapping[str, Any], ...] = ()
    shapes: Mapping[Ref, Shape] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        """That it replaces, each once."""
        return tuple(dict.fromkeys(name for call in self.calls for name in call.nodes))

    @property
    def kept(self) -> tuple[tuple[str, Ref], ...]:
        """Variables that are read later, and what of the right side each is."""
        return tuple(
            (self.calls[ref[0]].outputs[ref[1]], right)
            for ref, right in self.rule.outputs
            if not isinstance(ref, str)
        )

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
    """The match of which a record is; None: the graph has none there.

    Args:
        elsewhere: the record's nodes are the graph's, and what it reads is another's but for parameters.
    """

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
    alike, seen = {}, dict[Any, int]()
    for i, term in enumerate(terms):
        if i in used:
            continue
        own = tuple("*" if reads.count(ref) == term.inputs.count(ref) else ref for ref in term.inputs)
        key = term.op, own, term.parameters
        if key in seen:
            alike[i] = seen[key]
        seen[key] = i
    return tuple(order), alike


def _linked(terms: Sequence[Term], order: Sequence[int], i: int) -> int:
    """How well a term is found from others: as what makes their inputs, or as what reads the same."""
    made = any(ref[0] == i for j in order for ref in terms[j].inputs if not isinstance(ref, str))
    reads = any(not isinstance(ref, str) and ref[0] in order for ref in terms[i].inputs)
    same = any(ref in terms[j].inputs for j in order for ref in terms[i].inputs)
    return 3 * made + 2 * reads + same


@dataclass(frozen=True)
class _PartlyMatched:
    calls: Mapping[int, RuleCall]
    bound: dict[str, Reference]
    numbers: Mapping[str, Any]

    def made(self, ref: tuple[int, int]) -> Reference | None:
        call = self.calls.get(ref[0])
        return None if call is None or ref[1] >= len(call.outputs) else ("var", call.outputs[ref[1]])


class _Matcher:
    def __init__(self, graph: Graph, rule: Rule, nodes: Sequence[str] = ()) -> None:
        self.graph, self.rule, self.nodes = graph, rule, nodes
        self.order, self.alike = _plan(rule)
        self.index: RuleCalls = calls_of(graph)

    def run(self) -> Iterator[Match]:
        if self.nodes and len(self.nodes) != len(self.rule.left):
            return
        if not self.rule.left or any(term.op not in self.index.by_op for term in self.rule.left):
            return
        yield from filter(None, map(self._made, self._from(_PartlyMatched({}, {}, {}), 0)))

    def _from(self, state: _PartlyMatched, depth: int) -> Iterator[_PartlyMatched]:
        if depth == len(self.order):
            yield state
            return
        i = self.order[depth]
        for call in self._candidates(state, i):
            more = self._unified(state, i, call)
            if more is not None:
                yield from self._from(more, depth + 1)

    def _candidates(self, state: _PartlyMatched, i: int) -> Sequence[RuleCall]:
        term, best = self.rule.left[i], self.index.by_op[self.rule.left[i].op]
        for j, call in state.calls.items():
            for (tag, k), ref in zip(call.inputs, self.rule.left[j].inputs, strict=True):
                if not isinstance(ref, str) and ref[0] == i:
                    best = min(best, self.index.made.get(k, ()) if tag == "var" else (), key=len)
        for ref in term.inputs:
            reference = state.bound.get(ref) if isinstance(ref, str) else state.made(ref)
            if reference is not None:
                best = min(best, self.index.readers.get(reference, ()), key=len)
        wanted = self.nodes[i] if self.nodes else None
        return [each for each in best if each.op == term.op and wanted in (None, each.node.name)]

    def _unified(self, state: _PartlyMatched, i: int, call: RuleCall) -> _PartlyMatched | None:
        term = self.rule.left[i]
        if len(call.inputs) != len(term.inputs) or any(call.node is own.node for own in state.calls.values()):
            return None
        if term.op == "split" and len(call.outputs) != self.rule.arity(False, i):
            return None
        for j, other in state.calls.items():
            first, second = (self.graph.position[c.node.name] for c in ((call, other)[:: 1 if i < j else -1]))
            if self.alike.get(max(i, j)) == min(i, j) and first > second:
                return None
        more = _PartlyMatched({**state.calls, i: call}, dict(state.bound), state.numbers)
        for j, own in more.calls.items():
            for ref, reference in zip(self.rule.left[j].inputs, own.inputs, strict=True):
                if isinstance(ref, str):
                    if more.bound.setdefault(ref, reference) != reference:
                        return None
                elif ref[0] in more.calls and more.made(ref) != reference:
                    return None
        numbers = self._numbers(state.numbers, term, call)
        return None if numbers is None else replace(more, numbers=numbers)

    def _numbers(self, known: Mapping[str, Any], term: Term, call: RuleCall) -> Mapping[str, Any] | None:
        numbers = dict(known)
        for key, value in term.parameters:
            if key not in call.parameters:
                return None
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
        if len(call.parameters) > len(term.parameters):  # the rule says nothing of one that the call has
            return None
        return numbers

    def _made(self, state: _PartlyMatched) -> Match | None:
        """With its right side; None where it may not be replaced."""
        rule, known = self.rule, state.numbers
        calls = tuple(state.calls[i] for i in range(len(rule.left)))
        match = Match(rule, calls, {name: state.bound[name] for name in rule.inputs if name in state.bound})
        if not self._may_go(match):
            return None
        left: dict[Ref, Shape] = {name: shape_of(self.graph, each) for name, each in match.bound.items()}
        for i, call in enumerate(calls):
            left |= {(i, j): self.graph.variables[k].shape for j, k in enumerate(call.outputs)}

        numbers: list[dict[str, Any]] = []
        ranks = {name: len(shape) for name, shape in left.items() if isinstance(name, str)}
        for term in rule.right:
            rank = ranks.get(_source(rule, term), 2)
            if any(isinstance(value, str) and value not in known for _, value in term.parameters):
                return None
            numbers.append({key: self._number(key, value, rank, known) for key, value in term.parameters})
        shapes = right_shapes(rule, left, numbers)
        return None if shapes is None else Match(rule, calls, match.bound, tuple(numbers), shapes)

    def _number(self, key: str, value: int | str, rank: int, known: Mapping[str, Any]) -> Any:
        """Of the right side; what are rows of a matrix there may be several dimensions of a tensor."""
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
        for name in inside:
            for k in filter(None, graph.nodes[name].outputs):
                if k not in kept and (k in outputs or not inside.issuperset(graph.variables[k].consumers)):
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
