"""Graphs that the algebra makes of one, piece by piece (Unity, sections 5.1 and 5.3).

    graph ──► pieces, cut where fewest matches are disturbed ──► best_first of each, at the cost of all

A cost is that of the whole graph, of which only what is new is computed: so a piece is searched for what is
best beside the others, and no layouts at its ends have to be tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from netsplit.errors import RewriteError
from netsplit.graph.ir import Graph
from netsplit.partition.methods.unity.best_first import best_first
from netsplit.rewrite import Algebra, Match, applied_rule, fingerprint, matches, rules_builtin
from netsplit.rewrite.algebra.foreign import applicable, read_rules
from netsplit.rewrite.algebra.generation import generated_rules
from netsplit.rewrite.algebra.rule import Rule

__all__ = ["Substituted", "best_graph", "rules_of"]


@dataclass(frozen=True)
class Substituted:
    """Args:
    best: with the algebra in `rewrites`.
    steps: of the best, in order: the rule, the first operator that it replaced, the cost after it.
    ended_by: "empty", or "budget" where that ended the search of a piece.
    left: candidates that were not expanded.
    """

    best: Graph
    steps: tuple[tuple[str, str, float], ...] = ()
    ended_by: str = "empty"
    expanded: int = 1
    left: int = 0


def rules_of(name: str) -> Sequence[Rule]:
    """Built in, generated, or those of a file of FlexFlow's that were proven.

    Raises:
        RewriteError: the file has no rules.
        NetSplitError: z3, which proves them, is not installed.
        OSError: there is no such file.
    """
    if name == "builtin":
        return rules_builtin()
    if name == "generated":
        return [own for rule in generated_rules() for own in (rule, rule.reversed) if _is_bound(own)]
    return applicable(read_rules(name))


def _is_bound(rule: Rule) -> bool:
    """Whether its left side says all that its right side needs."""
    terms = {ref for term in rule.left for ref in term.inputs}
    numbers = {value for term in rule.left for _, value in term.parameters}
    needed = {value for term in rule.right for _, value in term.parameters if isinstance(value, str)}
    return bool(rule.left) and {*rule.inputs} <= terms and needed <= numbers


def best_graph(
    graph: Graph,
    rules: Sequence[Rule],
    cost: Callable[[Graph], float],
    alpha: float = 1.05,
    budget: int = 300,
    piece: int = 20,
) -> Substituted:
    """The cheapest graph that the rules make of a captured one.

    Args:
        cost: of a graph, in seconds.
        alpha: of a piece, how many times the best a candidate may cost to be looked at.
        budget: of candidates, over all pieces.
        piece: least operators of one.
    """
    costs: dict[object, float] = {}

    def priced(own: Graph) -> float:
        if own.rewrites not in costs:
            costs[own.rewrites] = cost(own)
        return costs[own.rewrites]

    best, ended_by, expanded, left, rest = graph, "empty", 0, 0, budget
    pieces = list(_pieces(list(graph.nodes), matches(graph, rules), piece))
    for i, names in enumerate(pieces):
        now = best_first(
            best,
            priced,
            partial(_substituted, rules=rules, names=frozenset(names), most=2 * len(graph)),
            fingerprint,
            1 + (alpha - 1) * len(names) / len(graph),
            max(rest // (len(pieces) - i), 1),
        )
        best, rest = now.best, rest - now.priced
        ended_by = now.ended_by if now.ended_by == "budget" else ended_by
        expanded, left = expanded + now.expanded, left + now.left
    records = [each for each in best.rewrites if isinstance(each, Algebra)]
    steps = [(each.rule.name, each.node, costs[best.rewrites[: i + 1]]) for i, each in enumerate(records)]
    return Substituted(best, tuple(steps), ended_by, expanded, left)


def _substituted(graph: Graph, rules: Sequence[Rule], names: frozenset[str], most: int) -> Iterator[Graph]:
    """What one rule makes of it, where it replaces some of these operators, or what was made of them."""
    for match in matches(graph, rules):
        if names.isdisjoint(_origin(name) for name in match.nodes):
            continue
        try:
            made = applied_rule(graph, match)
        except RewriteError:
            continue
        if len(made) <= most:
            yield made


def _pieces(names: Sequence[str], every: Sequence[Match], least: int) -> Iterator[Sequence[str]]:
    """Operators in order, cut where fewest matches are disturbed, nearest the middle."""
    if len(names) < 2 * least:
        yield names
        return
    at = {name: i for i, name in enumerate(names)}
    spans = [[at[name] for name in match.nodes if name in at] for match in every]

    def disturbed(cut: int) -> tuple[int, int]:
        return sum(min(own) < cut <= max(own) for own in spans if own), abs(2 * cut - len(names))

    cut = min(range(least, len(names) - least + 1), key=disturbed)
    yield from _pieces(names[:cut], every, least)
    yield from _pieces(names[cut:], every, least)


def _origin(name: str) -> str:
    """The captured operator after which one of the algebra's is called."""
    return name.split("+")[0]
