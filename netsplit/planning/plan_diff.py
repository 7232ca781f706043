"""Two placements compared: what moved, what it changes for devices and cut edges, and why it pays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from netsplit.cluster.cluster import Cluster, Link
from netsplit.graph.quotient import DisjointSets
from netsplit.partition.base import Loads, Placement, Problem
from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.common.interchangeable import interchangeable
from netsplit.planning.explanation.difference import DeviceChange, MovedGroup, Part, PlanDiff
from netsplit.planning.explanation.notation import is_path
from netsplit.planning.explanation.path import critical_path, overheads, predicted, totals
from netsplit.planning.explanation.uses import cut_edges
from netsplit.planning.needed_bytes import needed_bytes

if TYPE_CHECKING:  # explaining a plan of a file loads neither room
    from netsplit.program.instructions import Program
    from netsplit.simulate.timeline import Timeline

__all__ = ["plan_diff"]


def plan_diff(
    problem: Problem,
    before: Placement,
    after: Placement,
    before_timeline: Timeline | None = None,
    after_timeline: Timeline | None = None,
    before_program: Program | None = None,
    after_program: Program | None = None,
) -> PlanDiff:
    """Compare two placements of one problem.

    Devices that are alike in every way may play one another's part: those of `after` are first named so
    that as little as possible moves (an assignment problem).

    Args:
        before_timeline, after_timeline: predicted. None: `problem.evaluate` is asked, if there is one;
            `max_load` needs none.
        before_program, after_program: those that were simulated; see `critical_path`.
    """
    instance = Instance.of(problem)
    old, new = instance.encode(before.device_of), instance.encode(after.device_of)
    plays = _match(instance, old, new)
    renamed = {instance.devices[q]: instance.devices[p] for q, p in enumerate(plays)}
    new = plays[new]
    cuts = [cut_edges(instance, where) for where in (old, new)]
    keys = [{(e.variable, e.source, e.target) for e in edges} for edges in cuts]
    lost = [e for e in cuts[0] if (e.variable, e.source, e.target) not in keys[1]]
    gained = [e for e in cuts[1] if (e.variable, e.source, e.target) not in keys[0]]
    loads = [problem.objective.loads(problem, each) for each in (before, after)]
    timelines = [before_timeline, after_timeline]
    if loads[0] is not None and loads[1] is not None:
        objectives, parts = _load_parts(instance, (loads[0], loads[1]), plays)
    else:
        timelines = [
            predicted(problem, placement) if t is None else t
            for t, placement in zip(timelines, (before, after), strict=True)
        ]
        objectives, parts = _path_parts(problem, timelines, (before_program, after_program), renamed)
    used = [needed_bytes(instance, p, t) for p, t in zip((before, after), timelines, strict=True)]
    used[1] = used[1][np.argsort(plays)]
    return PlanDiff(
        before=before.method,
        after=after.method,
        renamed={q: p for q, p in renamed.items() if p != q},
        groups=_groups(instance, old, new),
        devices=_devices(instance, before, after, plays, used),
        lost=tuple(lost),
        gained=tuple(gained),
        reordered=_reordered(instance, before, after, old, new),
        recomputed=_in_order(instance, after.recomputed - before.recomputed),
        kept=_in_order(instance, before.recomputed - after.recomputed),
        before_s=objectives[0],
        after_s=objectives[1],
        parts=tuple(sorted(parts, key=lambda part: -abs(part.change_s))),
    )


def _match(instance: Instance, old: Ints, new: Ints) -> Ints:
    """[D] for each device of the new placement the device of the old one whose part it plays."""
    from scipy.optimize import linear_sum_assignment

    n, count = instance.n, len(instance.devices)
    slowest = (instance.forward_s + instance.backward_s).max(axis=1)
    weight = np.full(n, 1.0 / max(n, 1))
    for each in (slowest, instance.state_bytes):
        weight += each / max(float(each.sum()), 1e-300)
    shared = np.zeros((count, count))
    np.add.at(shared, (new, old), weight)
    plays = np.arange(count)
    for alike in _interchangeable(instance.problem.cluster):
        rows, columns = linear_sum_assignment(shared[np.ix_(alike, alike)], maximize=True)
        plays[np.array(alike)[rows]] = np.array(alike)[columns]
    return plays


def _interchangeable(cluster: Cluster) -> list[list[int]]:
    """Sets of devices any two of which can change places: alike in kind, bytes, links and NICs."""
    number: dict[Link | None, int] = {None: 0}
    table = np.array(
        [
            [number.setdefault(cluster.links.get((p.name, q.name)), len(number)) for q in cluster.devices]
            for p in cluster.devices
        ]
    )
    nics = [cluster.nic(device.name) for device in cluster.devices]
    paces = [None if nic is None else (nic.out_s_per_byte, nic.in_s_per_byte) for nic in nics]
    own = [(d.kind, d.capacity_bytes, d.port, pace) for d, pace in zip(cluster.devices, paces, strict=True)]
    behind = np.array([[p is not None and p is q for q in nics] for p in nics])
    return interchangeable(own, [table, behind])


def _groups(instance: Instance, old: Ints, new: Ints) -> tuple[MovedGroup, ...]:
    """Connected components of the nodes that made the same move."""
    sets = DisjointSets(instance.n)
    went = [(int(p), int(q)) for p, q in zip(old, new, strict=True)]
    for u in range(instance.n):
        for v in instance.successors[u]:
            if went[u] == went[v] and old[u] != new[u]:
                sets.merge(u, int(v))
    graph = instance.problem.graph
    total = instance.forward_s + instance.backward_s
    groups = []
    for members in sets.sets():
        p, q = went[members[0]]
        if p == q:
            continue
        names = tuple(instance.names[v] for v in members)
        groups.append(
            MovedGroup(
                nodes=names,
                module=_shared_module(graph.nodes[name].module for name in names),
                source=instance.devices[p],
                target=instance.devices[q],
                before_s=float(total[members, p].sum()),
                after_s=float(total[members, q].sum()),
                state_bytes=int(instance.state_bytes[members].sum()),
            )
        )
    return tuple(sorted(groups, key=lambda g: (-max(g.before_s, g.after_s), -len(g.nodes))))


def _shared_module(modules: Iterable[str]) -> str:
    parts = [module.split(".") if is_path(module) else [] for module in modules]
    shared = []
    for same in zip(*parts, strict=False):
        if len(set(same)) > 1:
            break
        shared.append(same[0])
    return ".".join(shared)


def _devices(
    instance: Instance, before: Placement, after: Placement, plays: Ints, used: Sequence[Ints]
) -> tuple[DeviceChange, ...]:
    """A replica has all nodes of its stage, and its part of their seconds."""
    first, second = instance.totals(before.all_stages), instance.totals(after.all_stages)
    order = np.argsort(plays)
    nodes = first.nodes, second.nodes[order]
    spent = first.forward_s + first.backward_s, (second.forward_s + second.backward_s)[order]
    return tuple(
        DeviceChange(
            name,
            *(int(each[p]) for each in nodes),
            *(float(each[p]) for each in spent),
            *(int(each[p]) for each in used),
        )
        for p, name in enumerate(instance.devices)
    )


def _reordered(instance: Instance, before: Placement, after: Placement, old: Ints, new: Ints) -> int:
    """Nodes of one device in both placements that do not stand at their old place among those."""
    count = 0
    for p in range(len(instance.devices)):
        stayed = [instance.names[v] for v in np.flatnonzero((old == p) & (new == p))]
        orders = [sorted(stayed, key=each.priority.__getitem__) for each in (before, after)]
        count += sum(a != b for a, b in zip(*orders, strict=True))
    return count


def _in_order(instance: Instance, names: Set[str]) -> tuple[str, ...]:
    return tuple(name for name in instance.names if name in names)


def _load_parts(
    instance: Instance, loads: tuple[Loads, Loads], plays: Ints
) -> tuple[tuple[float | None, float | None], list[Part]]:
    """The largest loads, and what each is made of where it is a sum."""
    objectives = (loads[0].period_s, loads[1].period_s)
    if loads[0].beside:
        return objectives, []
    first, second = loads
    p, order = int(np.argmax(first.seconds)), np.argsort(plays)
    q = int(np.argmax(second.seconds[order]))
    largest = ", then ".join(dict.fromkeys((instance.devices[p], instance.devices[q])))
    after = {name: float(each[order[q]]) for name, each in second.parts.items()}
    return objectives, [
        Part(f"{name} of the largest load, {largest}", float(each[p]), after[name])
        for name, each in first.parts.items()
    ]


def _path_parts(
    problem: Problem,
    timelines: Iterable[Timeline | None],
    programs: Iterable[Program | None],
    renamed: Mapping[str, str],
) -> tuple[tuple[float | None, float | None], list[Part]]:
    """The iterations, and what their critical paths are made of, by device and link of the first."""
    own = overheads(problem.cluster, problem.costs)
    spent: list[dict[str, float]] = []
    iterations: list[float | None] = []
    for timeline, program, names in zip(timelines, programs, ({}, renamed), strict=True):
        iterations.append(None if timeline is None else timeline.iteration_s)
        path = () if timeline is None else critical_path(timeline, program, *own, problem.cluster)
        by_place: dict[str, float] = {}
        for where, s in totals(path).items():
            ends = [names.get(device, device) for device in where.split(" -> ")]
            by_place[f"transfers {' -> '.join(ends)}" if len(ends) > 1 else f"time of {ends[0]}"] = s
        spent.append(by_place)
    both = (iterations[0], iterations[1])
    if None in both:
        return both, []
    return both, [Part(k, spent[0].get(k, 0.0), spent[1].get(k, 0.0)) for k in spent[0] | spent[1]]
