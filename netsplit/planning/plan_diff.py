"""Two plans of one problem compared: what moved, and what the objective's seconds go to before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from netsplit.errors import ConfigError
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance, interchangeable_devices
from netsplit.placement.placement import Placement
from netsplit.planning.explanation.notation import counted, listed, percent, seconds, short, wrapped
from netsplit.planning.explanation.parts import (
    copied_nodes,
    operator_cuts,
    parts_summary,
    placed_splits,
    restated,
    shortened_list,
)
from netsplit.planning.plan import Plan
from netsplit.rewrite.node_parts import node_parts

__all__ = ["PlacementChange", "PlanDiff", "placement_change", "plan_diff"]

SAME = 1e-9  # relative: sums of floats in another order
ROUTES = 4  # that are told


@dataclass(frozen=True)
class PlacementChange:
    """What changes between two placements; of an operator in other parts, those elsewhere are moved."""

    moved: int  # operators, or parts of them, on another device than before
    split: int  # operators in parts that were whole, or in other parts
    joined: int  # operators that are whole again
    lines: tuple[str, ...]  # all of it in words: from where to where, the largest


def placement_change(problem: Problem, before: Placement, after: Placement) -> PlacementChange:
    """What changes; devices are those of these names, also where others are alike.

    Args:
        problem: of the graph with the rewrites of `after`.
    """
    graph = problem.graph
    had, has = operator_cuts(before), operator_cuts(after)
    split = [each for each in placed_splits(after, graph) if had.get(each.captured) != has[each.captured]]
    joined = [name for name in had if name not in has]
    earlier = before if before.rewrites == after.rewrites else restated(before, graph)
    instance, moving = Instance.of(problem), node_parts(graph).moving
    old, new = instance.encode(earlier.device_of), instance.encode(after.device_of)
    routes: dict[tuple[int, int], list[int]] = {}  # operators and parts that went so
    for v in np.flatnonzero(old != new):
        if instance.names[v] not in moving:
            routes.setdefault((int(old[v]), int(new[v])), []).append(int(v))
    beside = sum(earlier.device_of[v] != after.device_of[v] for v in moving)
    lines = [
        *_route_lines(instance, routes, "node" if earlier.rewrites or after.rewrites else "operator"),
        *([f"{counted(beside, 'more node')} elsewhere, for transfers only"] if beside else []),
        *([f"now {parts_summary(split)}"] if split else []),
        *([f"no longer split: {shortened_list([*map(short, joined)], 4)}"] if joined else []),
        *_other_lines(earlier, before, after),
    ]
    if not lines:
        lines = [
            "only the order of operators changed" if before.priority != after.priority else "nothing moved"
        ]
    return PlacementChange(sum(map(len, routes.values())), len(split), len(joined), tuple(lines))


def _route_lines(instance: Instance, routes: dict[tuple[int, int], list[int]], what: str) -> Iterator[str]:
    """`what` moved: nodes, where an operator may be several."""
    took, most_first = instance.forward_s + instance.backward_s, sorted(routes, key=lambda r: -len(routes[r]))
    for p, q in most_first[:ROUTES]:
        nodes = routes[p, q]
        largest = max(nodes, key=lambda v: took[v, p])
        there, now = (seconds(float(took[largest, device])) for device in (p, q))
        yield (
            f"{counted(len(nodes), what)} from {instance.devices[p]} to {instance.devices[q]}, the largest "
            f"{short(instance.names[largest])} (per micro-batch {there} there, {now} now)"
        )
    if rest := sum(len(routes[r]) for r in most_first[ROUTES:]):
        yield f"{counted(rest, what)} between other devices"


def _other_lines(earlier: Placement, before: Placement, after: Placement) -> Iterator[str]:
    if earlier.recomputed != after.recomputed:
        yield f"{counted(len(after.recomputed), 'operator')} recomputed, {len(earlier.recomputed)} before"
    if before.replicas != after.replicas:
        there, now = (
            "; ".join(listed(each) for each in p.replicas.values()) or "none" for p in (before, after)
        )
        yield f"replicas: {now}, {there} before"
    had, has = copied_nodes(before), copied_nodes(after)
    if had != has:
        yield f"{counted(len(has), 'operator')} with copies of weights, {len(had)} before"


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
        """Readable text of at most 100 columns."""
        lines = wrapped(f"{self.before} to {self.after}: {_verdict(self.before_s, self.after_s)}")
        for name, change in self._changes()[:top]:
            sign = "+" if change > 0 else "-"
            lines.append(f"    {sign + seconds(abs(change)):>12}  {name}")
        other = [f"{q} is {p}" for q, p in self.played.items() if p != q]
        told = [f"equal devices under other names: {', '.join(other)}"] if other else []
        for text in (*told, *self.change.lines):
            lines += wrapped(text, "  ", "      ")
        return lines

    def _changes(self) -> list[tuple[str, float]]:
        """What the seconds go to, and how many more than before; the greatest change first."""
        names = dict(self.made_of_before) | dict(self.made_of_after)
        each = {k: self.made_of_after.get(k, 0.0) - self.made_of_before.get(k, 0.0) for k in names}
        least = SAME * self.before_s
        return sorted(((k, s) for k, s in each.items() if abs(s) > least), key=lambda item: -abs(item[1]))

    def to_dict(self) -> dict[str, Any]:
        """Numbers, strings, lists and mappings only."""
        return asdict(self)


def plan_diff(before: Plan, after: Plan) -> PlanDiff:
    """What moved from one plan of a problem to another, and what that brings.

    Devices that are alike in every way may play one another's part. Where the plans' rewrites differ, an
    operator counts as moved from where its parts, or what they are of, were.

    Raises:
        ConfigError: the plans are for other devices.
    """
    problem, old = after.problem, before.placement
    played = _played_devices(problem, old, after.placement)
    new = _with_devices(after.placement, played)
    was, now = before.explain(), after.explain()
    made_of = {
        " -> ".join(played.get(end, end) for end in where.split(" -> ")): seconds
        for where, seconds in now.made_of.items()
    }
    change = placement_change(problem, old, new)
    return PlanDiff(
        old.method, new.method, was.objective_s, now.objective_s, was.made_of, made_of, played, change
    )


def _verdict(before: float, after: float) -> str:
    if abs(after - before) <= SAME * before:
        return f"the objective stays at {seconds(before)}"
    pays = "faster" if after < before else "slower"
    return f"{pays}, {seconds(before)} to {seconds(after)} ({percent(after - before, before)})"


def _played_devices(problem: Problem, before: Placement, after: Placement) -> dict[str, str]:
    """Device of `after` -> the equal device of `before` whose part it plays, so that as little as possible
    moves (an assignment problem).

    Args:
        problem: of the graph with the rewrites of `after`.

    Raises:
        ConfigError: the placements are of other devices.
    """
    from scipy.optimize import linear_sum_assignment

    here = before if before.rewrites == after.rewrites else restated(before, problem.graph)
    instance = Instance.of(problem)
    if strange := sorted({*here.device_of.values()} - {*instance.devices}):
        raise ConfigError(
            f"one plan is for {listed(strange)}, the other for {listed(instance.devices)}: give plans for "
            "the same devices."
        )
    old, new = instance.encode(here.device_of), instance.encode(after.device_of)
    weight = np.full(instance.n, 1.0 / max(instance.n, 1))
    for each in ((instance.forward_s + instance.backward_s).max(axis=1), instance.state_bytes):
        weight += each / max(float(each.sum()), 1e-300)
    common = np.zeros((len(instance.devices),) * 2)
    np.add.at(common, (new, old), weight)
    played: dict[str, str] = {}
    for alike in interchangeable_devices(instance):
        rows, columns = linear_sum_assignment(common[np.ix_(alike, alike)], maximize=True)
        played |= {
            instance.devices[alike[q]]: instance.devices[alike[p]] for q, p in zip(rows, columns, strict=True)
        }
    return played


def _with_devices(placement: Placement, names: Mapping[str, str]) -> Placement:
    """The same with its devices under other names."""
    stages = tuple(
        replace(stage, devices=tuple(names[each] for each in stage.devices)) for stage in placement.stages
    )
    device_of = {node: names[device] for node, device in placement.device_of.items()}
    return replace(placement, device_of=device_of, stages=stages)
