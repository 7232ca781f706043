"""Two placements compared: what moved, what it changes for devices and cut edges, and why it pays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from netsplit.cluster.cluster import Cluster, Link
from netsplit.errors import ConfigError
from netsplit.graph.quotient import DisjointSets
from netsplit.partition.base import Loads, Problem
from netsplit.partition.common.capacity import needed_bytes
from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.common.interchangeable import interchangeable
from netsplit.placement.placement import Placement
from netsplit.planning.explanation.difference import DeviceChange, MovedGroup, Part, PlanDiff
from netsplit.planning.explanation.notation import is_path, listed
from netsplit.planning.explanation.parts import parts_change, restated
from netsplit.planning.explanation.path import critical_path, overheads, predicted, totals
from netsplit.planning.explanation.uses import CutEdge, cut_edges

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
    before_problem: Problem | None = None,
) -> PlanDiff:
    """Compare two placements of one problem.

    Devices that are alike in every way may play one another's part: those of `after` are first named so
    that as little as possible moves (an assignment problem).

    Args:
        problem: of the graph with the rewrites of `after`.
        before_timeline, after_timeline: predicted. None: `problem.simulator` is asked, if there is one;
            `max_load` needs none.
        before_program, after_program: those that were simulated; see `critical_path`.
        before_problem: of the graph with the rewrites of `before`, where these are others. What devices had
            and what was cut is then of that graph; what moved, of nodes where `restated` has them.

    Raises:
        ConfigError: the problems are of other devices.
    """
    was = problem if before_problem is None else before_problem
    earlier = before if before.rewrites == after.rewrites else restated(before, problem.graph)
    first, instance = Instance.of(was), Instance.of(problem)
    if first.devices != instance.devices:
        raise ConfigError(
            f"one plan is for {listed(first.devices)}, the other for {listed(instance.devices)}: give plans "
            "for the same devices."
        )
    old, new = instance.encode(earlier.device_of), instance.encode(after.device_of)
    plays = _match(instance, old, new)
    renamed = {instance.devices[q]: instance.devices[p] for q, p in enumerate(plays)}
    new = plays[new]
    lost, gained = _edges_changed(cut_edges(first, first.encode(before.device_of)), cut_edges(instance, new))
    asked = ((was, before), (problem, after))
    loads = [problem.objective.loads(*each) for each in asked]
    timelines = [before_timeline, after_timeline]
    if loads[0] is not None and loads[1] is not None:
        objectives, parts = _load_parts(instance, (loads[0], loads[1]), plays)
    else:
        timelines = [predicted(*each) if t is None else t for t, each in zip(timelines, asked, strict=True)]
        objectives, parts = _path_parts(problem, timelines, (before_program, after_program), renamed)
    changed = parts_change(before, after, problem.graph)
    return PlanDiff(
        before=before.method,
        after=after.method,
        renamed={q: p for q, p in renamed.items() if p != q},
        groups=_groups(instance, old, new),
        devices=_devices((first, instance), (before, after), timelines, plays),
        lost=lost,
        gained=gained,
        reordered=_reordered(instance, earlier, after, old, new),
        recomputed=_in_order(instance, after.recomputed - earlier.recomputed),
        kept=_in_order(instance, earlier.recomputed - after.recomputed),
        before_s=objectives[0],
        after_s=objectives[1],
        parts=tuple(sorted(parts, key=lambda part: -abs(part.change_s))),
        split=tuple(each.renamed(renamed) for each in changed.split),
        recut=tuple(each.renamed(renamed) for each in changed.recut),
        joined=changed.joined,
        copied=changed.copied,
        uncopied=changed.uncopied,
    )


def _edges_changed(
    before: Sequence[CutEdge], after: Sequence[CutEdge]
) -> tuple[tuple[CutEdge, ...], tuple[CutEdge, ...]]:
    """Those that only the first has, and those that only the second has."""
    old, new = ({(e.variable, e.source, e.target): e for e in edges} for edges in (before, after))
    return tuple(old[k] for k in old if k not in new), tuple(new[k] for k in new if k not in old)


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
    same_nic = np.array([[p is not None and p is q for q in nics] for p in nics])
    return interchangeable(own, [table, same_nic])


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
    instances: tuple[Instance, Instance],
    placements: tuple[Placement, Placement],
    timelines: Sequence[Timeline | None],
    plays: Ints,
) -> tuple[DeviceChange, ...]:
    """A replica has all nodes of its stage, and its part of their seconds."""
    held = [
        (totals.nodes, totals.forward_s + totals.backward_s, needed_bytes(instance, placement, timeline))
        for instance, placement, timeline in zip(instances, placements, timelines, strict=True)
        for totals in [instance.totals(placement.all_stages)]
    ]
    order = np.argsort(plays)
    (nodes, spent, used), (nodes_after, spent_after, used_after) = held[0], (each[order] for each in held[1])
    return tuple(
        DeviceChange(
            name,
            nodes_before=int(nodes[p]),
            nodes_after=int(nodes_after[p]),
            before_s=float(spent[p]),
            after_s=float(spent_after[p]),
            before_bytes=int(used[p]),
            after_bytes=int(used_after[p]),
        )
        for p, name in enumerate(instances[0].devices)
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
