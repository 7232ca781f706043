"""What moves from one plan of a model to another, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from netsplit.placement.placement import Placement
from netsplit.planning.parts import (
    operator_name,
    parts_summary,
    placed_splits,
    placed_views,
    shortened_list,
)
from netsplit.planning.plan import Plan
from netsplit.rewrite.records import folded
from netsplit.rewrite.tasks import TaskCut
from netsplit.tables import counted, listed, short

__all__ = ["PlacementChange", "placement_change"]

ROUTES = 4  # that are listed


@dataclass(frozen=True)
class PlacementChange:
    """What changes between two placements."""

    moved: int  # operators on other devices than before, in parts as before
    split: int  # operators in parts that were whole, or in other parts
    joined: int  # operators that are whole again
    lines: tuple[str, ...]  # all of it in words: from where to where


def placement_change(before: Plan, after: Plan) -> PlacementChange:
    """What changes from one plan of a model to another."""
    old, new = before.placement, after.placement
    had, has = _operator_cuts(old), _operator_cuts(new)
    split = [
        each
        for each in placed_splits(new, after.problem.graph)
        if had.get(each.captured) != has[each.captured]
    ]
    joined = [short(name) for name in had if name not in has]
    was, now = (placed_views(each.placement, each.problem.graph) for each in (before, after))
    routes: dict[tuple[str, str], list[str]] = {}
    for operator in now:
        there, here = sorted(was.get(operator, ())), sorted(now[operator])
        if there and there != here and had.get(operator) == has.get(operator):
            routes.setdefault((listed(there), listed(here)), []).append(short(operator))
    algebra = f"algebra gives other operators: {len(was.keys() - now)} before, {len(now.keys() - was)} now"
    lines = [
        *_route_lines(routes),
        *([f"now {parts_summary(split)}"] if split else []),
        *([f"no longer split: {shortened_list(joined, 4)}"] if joined else []),
        *([algebra] if was.keys() != now.keys() else []),
        *_other_lines(before, after),
    ]
    if not lines:
        lines = ["only the order of operators changed" if old.priority != new.priority else "nothing moved"]
    return PlacementChange(sum(map(len, routes.values())), len(split), len(joined), tuple(lines))


def _route_lines(routes: Mapping[tuple[str, str], list[str]]) -> Iterator[str]:
    most_first = sorted(routes, key=lambda route: -len(routes[route]))
    for route in most_first[:ROUTES]:
        there, here = route
        names = routes[route]
        yield f"{counted(len(names), 'operator')} from {there} to {here}: {shortened_list(names, 3)}"
    if rest := sum(len(routes[route]) for route in most_first[ROUTES:]):
        yield f"{counted(rest, 'operator')} between other devices"


def _other_lines(before: Plan, after: Plan) -> Iterator[str]:
    had, has = (
        {operator_name(each.problem.graph.nodes[v]) for v in each.placement.recomputed}
        for each in (before, after)
    )
    if had != has:
        yield f"{counted(len(has), 'operator')} recomputed, {len(had)} before"
    there, here = (list(each.placement.replicas.values()) for each in (before, after))
    if there != here:
        now, then = ("; ".join(map(listed, each)) or "none" for each in (here, there))
        yield f"replicas: {now}, {then} before"


def _operator_cuts(placement: Placement) -> dict[str, tuple[TaskCut, ...]]:
    """How each operator that is in parts is cut."""
    return {name: tasks.cuts for name, tasks in folded(placement.rewrites).items() if tasks.cuts}
