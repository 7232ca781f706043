"""What one placement has elsewhere or otherwise than another on the same devices, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np

from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance
from netsplit.placement.placement import Placement
from netsplit.planning.explanation.notation import counted, listed, seconds, short
from netsplit.planning.explanation.parts import (
    copied_nodes,
    operator_cuts,
    parts_summary,
    placed_splits,
    restated,
)
from netsplit.rewrite.node_parts import node_parts

__all__ = ["PlacementChange", "placement_change"]

_ROUTES = 4
_NAMED = 4
_ORDER = "the order of operators alone"


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
    routes = _routes(instance, earlier, after, moving)
    beside = sum(earlier.device_of[v] != after.device_of[v] for v in moving)
    lines = [
        *_route_lines(instance, routes, "node" if earlier.rewrites or after.rewrites else "operator"),
        *([f"{counted(beside, 'more node')} elsewhere, of what only moves tensors"] if beside else []),
        *([f"now {parts_summary(split)}"] if split else []),
        *([f"whole again: {_named(joined)}"] if joined else []),
        *_other_lines(earlier, before, after),
    ]
    return PlacementChange(
        sum(map(len, routes.values())),
        len(split),
        len(joined),
        tuple(lines) or (_ORDER if before.priority != after.priority else "nothing moved",),
    )


def _routes(
    instance: Instance, before: Placement, after: Placement, moving: Set[str]
) -> dict[tuple[int, int], list[int]]:
    """(device before, device after) -> operators and parts that went so, those with most first."""
    old, new = instance.encode(before.device_of), instance.encode(after.device_of)
    routes: dict[tuple[int, int], list[int]] = {}
    for v in np.flatnonzero(old != new):
        if instance.names[v] in moving:
            continue
        routes.setdefault((int(old[v]), int(new[v])), []).append(int(v))
    return dict(sorted(routes.items(), key=lambda route: -len(route[1])))


def _route_lines(instance: Instance, routes: dict[tuple[int, int], list[int]], what: str) -> Iterator[str]:
    """`what` moved: nodes, where an operator may be several."""
    took = instance.forward_s + instance.backward_s
    for (p, q), nodes in list(routes.items())[:_ROUTES]:
        largest = max(nodes, key=lambda v: took[v, p])
        there, now = (seconds(float(took[largest, device])) for device in (p, q))
        yield (
            f"{counted(len(nodes), what)} from {instance.devices[p]} to {instance.devices[q]}, "
            f"the largest {short(instance.names[largest])} ({there} of a micro-batch there, {now} now)"
        )
    rest = sum(len(nodes) for nodes in list(routes.values())[_ROUTES:])
    if rest:
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


def _named(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return listed([*map(short, names[:_NAMED]), *([f"{rest} more"] if rest > 0 else [])])
