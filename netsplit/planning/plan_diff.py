"""Two placements compared: what moved, what it changes for devices and cut edges, and why it pays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from netsplit.cluster.cluster import Cluster, Link
from netsplit.graph.quotient import DisjointSets
from netsplit.partition.base import Loads, Placement, Problem
from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.common.interchangeable import interchangeable
from netsplit.planning.explanation.notation import (
    counted,
    is_path,
    nbytes,
    node_run,
    percent,
    seconds,
    short,
    wrapped,
)
from netsplit.planning.explanation.parts import PlacedSplit, parts_lines
from netsplit.planning.explanation.path import critical_path, overheads, predicted, totals
from netsplit.planning.explanation.uses import CutEdge, cut_edges
from netsplit.planning.needed_bytes import needed_bytes

if TYPE_CHECKING:  # explaining a plan of a file loads neither room
    from netsplit.program.instructions import Program
    from netsplit.simulate.timeline import Timeline

__all__ = ["DeviceChange", "MovedGroup", "Part", "PlanDiff", "plan_diff"]


@dataclass(frozen=True)
class MovedGroup:
    """Connected nodes that went from one device to another. Seconds are of one micro-batch."""

    nodes: tuple[str, ...]  # in graph order
    module: str  # dotted prefix that their modules share
    source: str
    target: str
    before_s: float  # forward and backward on the old device
    after_s: float  # and on the new
    state_bytes: int


@dataclass(frozen=True)
class DeviceChange:
    """One device before and after: its nodes' seconds of one micro-batch, and its bytes (`needed_bytes`)."""

    device: str
    nodes_before: int
    nodes_after: int
    before_s: float
    after_s: float
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True)
class Part:
    """A part of the objective: of the critical path, or of the largest load."""

    name: str  # "time of d0", "transfers d0 -> d1", "sends"
    before_s: float
    after_s: float

    @property
    def change_s(self) -> float:
        return self.after_s - self.before_s


@dataclass(frozen=True)
class PlanDiff:
    """What differs between two placements. Devices have the names of the first; `renamed` says how."""

    before: str  # methods
    after: str
    renamed: dict[str, str]  # device of the second -> the equal device of the first that it plays
    groups: tuple[MovedGroup, ...]  # the most seconds first
    devices: tuple[DeviceChange, ...]
    lost: tuple[CutEdge, ...]  # cut before and no more, the costliest first
    gained: tuple[CutEdge, ...]
    reordered: int  # nodes that change places in their device's order
    before_s: float | None  # the objective; None where it is not known
    after_s: float | None
    parts: tuple[Part, ...]  # add up to the objective, before and after; the greatest change first
    recomputed: tuple[str, ...] = ()  # nodes that only the second computes again for the backward
    kept: tuple[str, ...] = ()  # and those that only the first does
    split: tuple[PlacedSplit, ...] = ()  # operators that only the second has in these parts
    joined: tuple[str, ...] = ()  # and those that are whole again

    def without_rounding(self) -> PlanDiff:
        """Without what differs only by the order in which floats were added."""
        parts = tuple(part for part in self.parts if not math.isclose(part.before_s, part.after_s))
        before_s, after_s = self.before_s, self.after_s
        if before_s is not None and after_s is not None and math.isclose(before_s, after_s):
            after_s = before_s
        return replace(self, parts=parts, after_s=after_s)

    @property
    def nodes(self) -> int:
        """How many moved."""
        return sum(len(group.nodes) for group in self.groups)

    def lines(self, top: int = 8) -> list[str]:
        """Readable text of at most 100 columns."""
        return _lines(self, top)

    def to_dict(self) -> dict[str, Any]:
        """Numbers, strings, lists and mappings only."""
        return asdict(self) | {"nodes": self.nodes}


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


def _lines(diff: PlanDiff, top: int) -> list[str]:
    lines = wrapped(_headline(diff))
    if diff.renamed:
        same = ", ".join(f"{q} is {p}" for q, p in diff.renamed.items())
        lines += wrapped(f"equal devices under other names: {same}", "  ", "      ")
    if diff.before_s is not None and diff.after_s is not None:
        lines += wrapped(_verdict(diff.before_s, diff.after_s), "  ", "      ")
        for part in [part for part in diff.parts if part.change_s][:top]:
            change = f"{part.change_s and _signed(part.change_s)}"
            lines.append(
                f"    {change:>12}  {part.name}: {seconds(part.before_s)} to {seconds(part.after_s)}"
            )
    for group in diff.groups[:top]:
        module = f" of {short(group.module)}" if group.module else ""
        lines += wrapped(
            f"{group.source} to {group.target}: {node_run(group.nodes)}{module},"
            f" {seconds(group.before_s)} before, {seconds(group.after_s)} now, {nbytes(group.state_bytes)}"
            " of states",
            "  ",
            "      ",
        )
    if len(diff.groups) > top:
        rest = sum(len(group.nodes) for group in diff.groups[top:])
        lines.append(f"  and {counted(len(diff.groups) - top, 'more group')} with {counted(rest, 'node')}")
    for text in parts_lines(diff.split):
        lines += wrapped(f"now {text}", "  ", "      ")
    whole = ("whole again", diff.joined)
    for what, names in (whole, ("now recomputed", diff.recomputed), ("no longer recomputed", diff.kept)):
        if names:
            lines += wrapped(f"{what}: {counted(len(names), 'node')}, {node_run(names)}", "  ", "      ")
    changed = diff.groups or diff.recomputed or diff.kept or diff.split or any(map(_differs, diff.devices))
    for device in diff.devices if changed else ():
        lines += wrapped(
            f"{device.device}: {device.nodes_before} to {device.nodes_after} nodes,"
            f" {seconds(device.before_s)} to {seconds(device.after_s)},"
            f" {nbytes(device.before_bytes)} to {nbytes(device.after_bytes)}",
            "  ",
            "      ",
        )
    for what, edges in (("no longer cut", diff.lost), ("newly cut", diff.gained)):
        lines += _edges(what, edges, top)
    return lines


def _differs(device: DeviceChange) -> bool:
    """By more than rounding; where nothing moved, replicas or their turns are others."""
    same = device.nodes_before == device.nodes_after
    return not (same and math.isclose(device.before_s, device.after_s, abs_tol=1e-15))


def _headline(diff: PlanDiff) -> str:
    names = f"{diff.before} to {diff.after}"
    if diff.groups:
        return f"{names}: {counted(diff.nodes, 'node')} moved in {counted(len(diff.groups), 'group')}"
    if diff.reordered:
        return f"{names}: nothing moved; {counted(diff.reordered, 'node')} at another place in the order"
    return f"{names}: nothing moved"


def _verdict(before: float, after: float) -> str:
    if after == before:
        return f"the objective stays at {seconds(before)}"
    pays = "pays" if after < before else "does not pay"
    change = f" ({percent(after - before, before)})" if before else ""
    return f"it {pays}: {seconds(before)} to {seconds(after)}{change}, because of"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '-'}{seconds(abs(value))}"


def _edges(what: str, edges: tuple[CutEdge, ...], top: int) -> list[str]:
    if not edges:
        return []
    lines = [
        f"  {what}: {counted(len(edges), 'edge')}, {seconds(sum(e.seconds for e in edges))} with gradients"
    ]
    for e in edges[: max(1, top // 2)]:
        lines += wrapped(
            f"{short(e.variable)}: {e.source} -> {e.target}, {nbytes(e.nbytes)}, {seconds(e.seconds)}",
            "    ",
            "        ",
        )
    return lines
