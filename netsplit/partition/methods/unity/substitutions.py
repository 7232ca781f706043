"""Graphs that the algebra makes of one, piece by piece (Unity, sections 5.1 and 5.3).

    graph ──► pieces, cut where fewest matches are disturbed ──► best_first of each, at the cost of all

A cost is that of the whole graph, of which only what is new is computed: so a piece is searched for what is
best beside the others, and no layouts at its ends have to be tried.

A substitution replaces operators, or, where that is asked for, changes the tasks of one, as Unity's do.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from netsplit.errors import RewriteError
from netsplit.graph.ir import Graph
from netsplit.partition.methods.unity.choices import TaskKind
from netsplit.rewrite import Match, applied_rule, fingerprint, matches, rules_builtin
from netsplit.rewrite.algebra.foreign import read_rules
from netsplit.rewrite.algebra.rule import Rule, both_ways, generated_rules

__all__ = ["Substituted", "Tasks", "best_graph", "rules_of"]

log = logging.getLogger(__name__)

Tasks: TypeAlias = Mapping[str, TaskKind]
"""How operators that are not whole are cut."""


@dataclass(frozen=True)
class Substituted:
    """What a search of graphs came to."""

    best: Graph  # with the algebra in `rewrites`
    tasks: Tasks | None = None  # where they were searched for here
    steps: tuple[tuple[str, str, float], ...] = ()
    """Steps to the best: the rule, or tasks; the first operator that it replaced; the cost after it."""
    ended_by: str = "empty"  # or "budget", where that ended the search of a piece
    expanded: int = 1
    left: int = 0  # candidates that were not expanded


def rules_of(name: str) -> Sequence[Rule]:
    """Rules built in, generated, or of a file of FlexFlow's, if proven; why others are wrong is logged.
    Raises as `read_rules`."""
    if name == "builtin":
        return rules_builtin()
    if name == "generated":
        return both_ways(generated_rules())
    rules = read_rules(name)
    rejected = [f"{rule.name} ({rule.reason})" for rule in rules if rule.proof == "rejected"]
    if rejected:
        few = "; ".join(rejected[:3]) + "; ..." * (len(rejected) > 3)
        log.warning("%s: %d of %d rules are rejected: %s", name, len(rejected), len(rules), few)
    return [rule for rule in rules if rule.proof in ("proven", "guarded")]


@dataclass(frozen=True, eq=False)
class _SearchedGraph:
    """A graph, with tasks, and what made it of which."""

    graph: Graph
    tasks: Tasks = field(default_factory=dict)
    before: _SearchedGraph | None = None
    what: tuple[str, str] = ("", "")

    @property
    def key(self) -> object:
        return fingerprint(self.graph), frozenset(self.tasks.items())


def best_graph(
    graph: Graph,
    rules: Sequence[Rule],
    cost: Callable[[Graph, Tasks], float],
    alpha: float = 1.05,
    budget: int = 300,
    piece: int = 20,
    kinds: Callable[[Graph], Mapping[str, Iterable[TaskKind]]] | None = None,
) -> Substituted:
    """The cheapest graph that the rules make of a captured one.

    Args:
        cost: of a graph with tasks, in seconds.
        alpha: of a piece, how many times the best a candidate may cost to be looked at.
        budget: of candidates, over all pieces.
        piece: least operators of one.
        kinds: the tasks that operators may have, where substitutions change them, too.
    """
    costs: dict[_SearchedGraph, float] = {}

    def priced(own: _SearchedGraph) -> float:
        if own not in costs:
            costs[own] = cost(own.graph, own.tasks)
        return costs[own]

    best, expanded, left, rest = _SearchedGraph(graph), 0, 0, budget
    pieces = list(_pieces(list(graph.nodes), matches(graph, rules), piece))
    for i, names in enumerate(pieces):
        made = partial(_substituted, rules=rules, names=frozenset(names), most=2 * len(graph), kinds=kinds)
        own_alpha = 1 + (alpha - 1) * len(names) / len(graph)
        own_budget = max(rest // (len(pieces) - i), 1)
        best, *counts = _best_first(best, priced, made, own_alpha, own_budget)
        expanded, left, rest = expanded + counts[0], left + counts[1], rest - counts[2]
    steps, own = list[tuple[str, str, float]](), best
    while own.before is not None:
        steps.append((*own.what, costs[own]))
        own = own.before
    tasks = None if kinds is None else best.tasks
    ended_by = "budget" if left else "empty"
    return Substituted(best.graph, tasks, tuple(reversed(steps)), ended_by, expanded, left)


def _substituted(
    now: _SearchedGraph,
    rules: Sequence[Rule],
    names: frozenset[str],
    most: int,
    kinds: Callable[[Graph], Mapping[str, Iterable[TaskKind]]] | None,
) -> Iterator[_SearchedGraph]:
    """What one rule makes of it, where it replaces some of these operators, or what was made of them; and
    with other tasks of one of them."""
    graph, tasks = now.graph, now.tasks
    for match in matches(graph, rules):
        if names.isdisjoint(_origin(name) for name in match.nodes):
            continue
        try:
            made = applied_rule(graph, match)
        except RewriteError:
            continue
        if len(made) <= most:
            rest = {name: kind for name, kind in tasks.items() if name in made.nodes}
            yield _SearchedGraph(made, rest, now, (match.rule.name, match.record.node))
    for name, every in kinds(graph).items() if kinds is not None else ():
        for kind in every if _origin(name) in names else ():
            said = "tasks " + " x ".join(
                f"{n} along {axis}" if blocks else f"{n} copies" for axis, blocks, n in kind
            )
            yield _SearchedGraph(graph, {**tasks, name: kind}, now, (said, name))


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


def _best_first(
    start: _SearchedGraph,
    cost: Callable[[_SearchedGraph], float],
    candidates: Callable[[_SearchedGraph], Iterable[_SearchedGraph]],
    alpha: float,
    budget: int,
) -> tuple[_SearchedGraph, int, int, int]:
    """Expand the cheapest until none is left, or `budget` candidates were priced: load of the machine changes
    no answer. What costs `alpha` times the best is not expanded.

    Returns:
        The best, and how many were expanded, left and priced.
    """
    best, least = start, cost(start)
    queue, seen, priced, expanded = [(least, 0, start)], {start.key}, 0, 0
    while queue and priced < budget:
        seconds, _, now = heapq.heappop(queue)
        if seconds > alpha * least:
            continue
        expanded += 1
        for each in candidates(now):
            own_key = each.key
            if own_key in seen:
                continue
            seen.add(own_key)
            own = cost(each)
            priced += 1
            if own < least:
                best, least = each, own
            if own < alpha * least:
                heapq.heappush(queue, (own, priced, each))
            if priced == budget:
                heapq.heappush(queue, (seconds, 0, now))  # there may be more of it
                break
    left = sum(seconds <= alpha * least for seconds, _, _ in queue)
    return best, expanded, left, priced
