"""Two plans of one model compared: what moved, and where the seconds went before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from netsplit.errors import ConfigError
from netsplit.partition.common.instance import Instance, interchangeable_devices
from netsplit.planning.explanation.notation import counted, listed, percent, seconds, short
from netsplit.planning.explanation.parts import (
    copied_nodes,
    operator_cuts,
    operator_name,
    parts_summary,
    placed_splits,
    placed_views,
    shortened_list,
)
from netsplit.planning.plan import Plan

__all__ = ["PlacementChange", "PlanDiff", "placement_change", "plan_diff"]

SAME = 1e-9  # relative: sums of floats in another order
ROUTES = 4  # that are listed


@dataclass(frozen=True)
class PlacementChange:
    """What changes between two placements."""

    moved: int  # operators on other devices than before, in parts as before
    split: int  # operators in parts that were whole, or in other parts
    joined: int  # operators that are whole again
    lines: tuple[str, ...]  # all of it in words: from where to where


def placement_change(before: Plan, after: Plan, played: Mapping[str, str] | None = None) -> PlacementChange:
    """What changes from one plan to another.

    Args:
        played: device of the second plan -> the device of the first whose part it plays; None: its own.
    """
    names = played or {}
    old, new = before.placement, after.placement
    had, has = operator_cuts(old), operator_cuts(new)
    split = [
        each
        for each in placed_splits(new, after.problem.graph)
        if had.get(each.captured) != has[each.captured]
    ]
    joined = [name for name in had if name not in has]
    was, now = (placed_views(each.placement, each.problem.graph) for each in (before, after))
    routes: dict[tuple[str, str], list[str]] = {}
    for operator in now:
        there, here = sorted(was.get(operator, ())), sorted(names.get(q, q) for q in now[operator])
        if there and there != here and had.get(operator) == has.get(operator):
            routes.setdefault((listed(there), listed(here)), []).append(operator)
    algebra = f"algebra gives other operators: {len(was.keys() - now)} before, {len(now.keys() - was)} now"
    lines = [
        *_route_lines(routes),
        *([f"now {parts_summary(split)}"] if split else []),
        *([f"no longer split: {shortened_list([*map(short, joined)], 4)}"] if joined else []),
        *([algebra] if was.keys() != now.keys() else []),
        *_other_lines(before, after, names),
    ]
    if not lines:
        lines = ["only the order of operators changed" if old.priority != new.priority else "nothing moved"]
    return PlacementChange(sum(map(len, routes.values())), len(split), len(joined), tuple(lines))


def _route_lines(routes: dict[tuple[str, str], list[str]]) -> Iterator[str]:
    most_first = sorted(routes, key=lambda route: -len(routes[route]))
    for there, here in most_first[:ROUTES]:
        names = [short(name) for name in routes[there, here]]
        yield f"{counted(len(names), 'operator')} from {there} to {here}: {shortened_list(names, 3)}"
    if rest := sum(len(routes[route]) for route in most_first[ROUTES:]):
        yield f"{counted(rest, 'operator')} between other devices"


def _other_lines(before: Plan, after: Plan, names: Mapping[str, str]) -> Iterator[str]:
    had, has = (
        {operator_name(each.problem.graph.nodes[v]) for v in each.placement.recomputed}
        for each in (before, after)
    )
    if had != has:
        yield f"{counted(len(has), 'operator')} recomputed, {len(had)} before"
    there = [list(each) for each in before.placement.replicas.values()]
    here = [[names.get(q, q) for q in each] for each in after.placement.replicas.values()]
    if there != here:
        now, then = ("; ".join(map(listed, each)) or "none" for each in (here, there))
        yield f"replicas: {now}, {then} before"
    old, new = copied_nodes(before.placement), copied_nodes(after.placement)
    if old != new:
        yield f"{counted(len(new), 'operator')} with copies of weights, {len(old)} before"


@dataclass(frozen=True)
class PlanDiff:
    """What differs between two plans. Devices have the names of the first."""

    before: str  # methods
    after: str
    before_s: float  # the objective
    after_s: float
    made_of_before: Mapping[str, float]  # as in `Explanation`
    made_of_after: Mapping[str, float]
    played: Mapping[str, str]  # device of the second -> the equal device of the first whose part it plays
    change: PlacementChange

    def lines(self, top: int = 8) -> list[str]:
        """Readable text."""
        lines = [f"{self.before} to {self.after}: {_verdict(self.before_s, self.after_s)}"]
        for name, change in self._changes()[:top]:
            sign = "+" if change > 0 else "-"
            lines.append(f"    {sign + seconds(abs(change)):>12}  {name}")
        other = [f"{q} to {p}" for q, p in self.played.items() if p != q]
        renamed = [f"equal devices renamed: {', '.join(other)}"] if other else []
        return [*lines, *(f"  {text}" for text in (*renamed, *self.change.lines))]

    def _changes(self) -> list[tuple[str, float]]:
        """Where the seconds go, and how many more than before; the greatest change first."""
        names = dict(self.made_of_before) | dict(self.made_of_after)
        each = {k: self.made_of_after.get(k, 0.0) - self.made_of_before.get(k, 0.0) for k in names}
        least = SAME * self.before_s
        return sorted(((k, s) for k, s in each.items() if abs(s) > least), key=lambda item: -abs(item[1]))

    def to_dict(self) -> dict[str, Any]:
        """Numbers, strings, lists and mappings only."""
        return asdict(self)


def plan_diff(before: Plan, after: Plan) -> PlanDiff:
    """What moved between two plans of a model, and what that gains.

    Devices that are alike in every way may play one another's part.

    Raises:
        ConfigError: the plans are for other devices.
    """
    played = _played_devices(before, after)
    was, now = before.explain(), after.explain()
    made_of = {
        " -> ".join(played.get(end, end) for end in where.split(" -> ")): seconds
        for where, seconds in now.made_of.items()
    }
    return PlanDiff(
        was.method, now.method, was.objective_s, now.objective_s, was.made_of, made_of, played,
        placement_change(before, after, played),
    )  # fmt: skip


def _verdict(before: float, after: float) -> str:
    if abs(after - before) <= SAME * before:
        return f"the objective stays at {seconds(before)}"
    pays = "faster" if after < before else "slower"
    return f"{pays}, {seconds(before)} to {seconds(after)} ({percent(after - before, before)})"


def _played_devices(before: Plan, after: Plan) -> dict[str, str]:
    """Device of `after` -> the equal device of `before` whose part it plays, so that as little as possible
    moves (an assignment problem).

    Raises:
        ConfigError: the plans are for other devices.
    """
    from scipy.optimize import linear_sum_assignment

    instance = Instance.of(after.problem)
    rank = {name: p for p, name in enumerate(instance.devices)}
    if strange := sorted({*before.placement.device_of.values()} - rank.keys()):
        raise ConfigError(
            f"one plan is for {listed(strange)}, the other for {listed(instance.devices)}: give plans for "
            "the same devices."
        )
    was, now = (placed_views(each.placement, each.problem.graph) for each in (before, after))
    common = np.zeros((len(rank), len(rank)))
    for operator in now:
        for p in was.get(operator, ()):
            for q in now[operator]:
                common[rank[q], rank[p]] += 1
    played: dict[str, str] = {}
    for alike in interchangeable_devices(instance):
        rows, columns = linear_sum_assignment(common[np.ix_(alike, alike)], maximize=True)
        played |= {
            instance.devices[alike[q]]: instance.devices[alike[p]] for q, p in zip(rows, columns, strict=True)
        }
    return played
