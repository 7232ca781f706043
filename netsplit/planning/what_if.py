"""What would help: the objective with 10 % more memory, speed or bandwidth, decided anew and not guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any, Literal

import numpy as np

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import needed_bytes
from netsplit.partition.common.instance import Instance
from netsplit.partition.partitioner import Partitioner
from netsplit.placement.placement import Placement
from netsplit.planning.decide import decide
from netsplit.planning.explanation.notation import percent, seconds, wrapped
from netsplit.profile.costs import Costs
from netsplit.tables import Column, Table

__all__ = ["Change", "WhatIf", "apply_change", "possible_changes", "what_if", "what_if_lines"]

Resource = Literal["memory", "speed", "bandwidth"]
_SHOWN = 0.0005  # of the objective: the least gain that one decimal of a percentage shows
_COLUMNS = (Column("", text=True), Column(""), Column(""), Column("", text=True))
_DECIDING = 0.8  # of the time; the rest is for scoring every placement under every change


@dataclass(frozen=True)
class Change:
    """More of one resource, of some devices or of some directed links (or ports of devices)."""

    resource: Resource
    label: str  # "memory of d0", "bandwidth d0 <-> d1"
    devices: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    factor: float = 1.1


@dataclass(frozen=True)
class WhatIf:
    """The objective with a change, in seconds."""

    change: Change
    given_s: float  # without it: the placement asked about
    base_s: float  # without it: the best placement known, among those found for the changes too
    value_s: float
    resolved: bool  # False: only placements known already were scored, as the time was up
    kept: bool  # a placement found without the change is still the best
    note: str = ""
    placement: Placement | None = None  # that gives `value_s`

    @property
    def gain_s(self) -> float:
        return self.base_s - self.value_s

    @property
    def gain(self) -> float:
        """The gain as a fraction of the objective without the change."""
        return self.gain_s / self.base_s if self.base_s else 0.0

    @property
    def shows(self) -> bool:
        """Whether the gain reads as more than 0.0 %."""
        return self.gain_s >= _SHOWN * self.base_s and self.gain_s > 0

    def to_dict(self) -> dict[str, Any]:
        fields = asdict(replace(self, placement=None)) | {"gain_s": self.gain_s, "gain": self.gain}
        del fields["placement"]
        return fields


def what_if(
    problem: Problem,
    partitioner: Partitioner,
    changes: Sequence[Change] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    time_limit_s: float = 60.0,
    *,
    placement: Placement | None = None,
) -> list[WhatIf]:
    """Decide the problem again under each change with the same method; what gains most comes first.

    More of a resource can be left unused, so no change loses. A method without a proof may yet find a
    better placement by luck, or a worse one. Therefore every placement found is scored under every change
    that it fits, and without any: a gain is the change's own, as far as the method can tell.

    Args:
        changes: None: `possible_changes`.
        progress: called with (number done, number of changes, label of the next).
        time_limit_s: of all changes; a fifth of it is for scoring. Each gets an equal part of what is left as
            the problem's time limit; those which the time does not reach are scored with the placements
            known (`resolved` False).
        placement: decided for the problem as it is; None: decided here.

    Raises:
        InfeasibleError, NetSplitError: the problem has no plan as it is (see `decide`).
    """
    changes = possible_changes(problem) if changes is None else list(changes)
    started = monotonic()
    deadline = started + _DECIDING * time_limit_s
    scorer = _Scorer(problem, changes)
    known = [placement or decide(problem, partitioner, room=False).placement]
    resolved: list[Placement | None] = []
    notes: list[str] = []
    for i, change in enumerate(changes):
        if progress is not None:
            progress(i, len(changes), change.label)
        limit = (deadline - monotonic()) / (len(changes) - i)
        decided, note = _decide(scorer.problems[i], partitioner, limit)
        resolved.append(decided)
        notes.append(note)
        if decided is not None and not any(_same(decided, other) for other in known):
            known.append(decided)
    # The given placement counts as it is, even where its method does not heed capacities.
    given = scorer(None, known[0])
    base = min([given, *(scorer(None, p) for p in known[1:] if scorer.fits(None, p))])
    deadline = started + time_limit_s
    results = []
    for i, change in enumerate(changes):
        mine = resolved[i]
        values = [(scorer(i, known[0]), 0)]
        for j, p in enumerate(known[1:], start=1):
            own = mine is not None and _same(p, mine)
            if (own or monotonic() < deadline) and scorer.fits(i, p):
                values.append((scorer(i, p), j))
        value, j = min(values)
        kept = mine is None or not _same(known[j], mine)
        if mine is not None and kept and not notes[i]:
            notes[i] = "a placement found without the change is kept"
        value = min(base, value)
        results.append(WhatIf(change, given, base, value, mine is not None, kept, notes[i], known[j]))
    return sorted(results, key=lambda result: -result.gain_s)


def _decide(problem: Problem, partitioner: Partitioner, left_s: float) -> tuple[Placement | None, str]:
    """The placement under a change; or None, and why there is none."""
    if left_s <= 0:
        return None, "not decided anew: the time was up"
    limit = left_s if problem.time_limit_s is None else min(left_s, problem.time_limit_s)
    try:
        return decide(replace(problem, time_limit_s=limit), partitioner, room=False).placement, ""
    except InfeasibleError:  # of a method that gives up: more of a resource does not take any away
        return None, "the method finds no placement under the change"
    except NetSplitError:  # of a method that does not heed contiguity
        return None, "the method's answer under the change is no plan"


def possible_changes(problem: Problem, factor: float = 1.1) -> list[Change]:
    """Memory and speed of every device and of every kind, bandwidth of every pair, port and equal links.

    What is not likely to matter is left out: the memory of a device that can hold the whole graph by the
    linear count of `Problem.memory_model`, and links which the objective does not count.
    """
    devices = problem.cluster.devices
    instance = Instance.of(problem)
    whole = int(instance.used_bytes(np.zeros(instance.n, np.int64)).max(initial=0))
    roomy = {device.name for device in devices if device.capacity_bytes >= whole}
    kinds: dict[str, list[str]] = {}
    for device in devices:
        kinds.setdefault(device.kind, []).append(device.name)
    changes: list[Change] = []
    resources: tuple[Resource, ...] = ("memory", "speed")
    for resource in resources:
        out = roomy if resource == "memory" else set()
        alone = [device.name for device in devices if device.name not in out]
        changes += [Change(resource, f"{resource} of {name}", (name,), (), factor) for name in alone]
        changes += [
            Change(resource, f"{resource} of all {len(names)} of kind {kind}", tuple(names), (), factor)
            for kind, names in kinds.items()
            if len(names) > 1 and not out.issuperset(names)
        ]
    if not problem.objective.over_ports:
        return changes + _link_changes(problem.cluster, factor)
    ports = [
        device.name for device in devices if device.port is not None and device.port.seconds_per_byte > 0
    ]
    changes += [
        Change("bandwidth", f"bandwidth of the port of {name}", (name,), (), factor) for name in ports
    ]
    if len(ports) > 1:
        changes.append(Change("bandwidth", f"bandwidth of all {len(ports)} ports", tuple(ports), (), factor))
    with_port = {device.name for device in devices if device.port is not None}
    used = {ends: link for ends, link in problem.cluster.links.items() if not with_port.issuperset(ends)}
    return changes + _link_changes(problem.cluster.with_links(used), factor)


def apply_change(problem: Problem, change: Change) -> tuple[Cluster, Costs]:
    """The cluster and the costs of a problem with a change made. Bytes are rounded down.

    A faster device is of a further kind: its own at that speed (`DeviceCosts.scaled`).
    """
    cluster, costs, factor = problem.cluster, problem.costs, change.factor

    def changed(device: Device) -> Device:
        if device.name not in change.devices:
            return device
        if change.resource == "memory":
            return replace(device, capacity_bytes=int(device.capacity_bytes * factor))
        if change.resource == "speed":
            return replace(device, kind=_faster(device.kind, factor))
        return device if device.port is None else replace(device, port=_wider(device.port, factor))

    wider = {ends: _wider(cluster.links[ends], factor) for ends in change.links}
    if change.resource == "speed":
        kinds = {device.kind for device in cluster.devices if device.name in change.devices}
        faster = {_faster(kind, factor): costs.devices[kind].scaled(factor) for kind in kinds}
        costs = replace(costs, devices=costs.devices | faster)
    devices = tuple(map(changed, cluster.devices))
    return replace(cluster, devices=devices).with_links(cluster.links | wider), costs


def what_if_lines(results: Sequence[WhatIf]) -> list[str]:
    """A table of at most 100 columns; what would read as 0.0 % is no gain, and needs no note."""
    if not results:
        return ["nothing to change"]
    late = [result.change.label for result in results if not (result.resolved or result.shows)]
    results = [
        result if result.shows else replace(result, value_s=result.base_s, note="")
        for result in results
        if result.resolved or result.shows
    ]
    lines = _table(results) if results else []
    return [*lines, f"  not decided anew, as the time was up: {', '.join(late)}"] if late else lines


def _table(results: Sequence[WhatIf]) -> list[str]:
    base = results[0].base_s
    more = f"{100 * (results[0].change.factor - 1):.0f} % more"
    lines = [f"what would help, decided anew ({seconds(base)} as it is):"]
    if results[0].given_s > base:
        best = f"deciding anew found one for the problem as it is with {seconds(base)}"
        lines += wrapped(f"the placement takes {seconds(results[0].given_s)}; {best}", "  ", "      ")
    rows = [
        (f"{more} {r.change.label}", seconds(r.value_s), f"-{percent(r.gain_s, base, 1)}", r.note)
        for r in results
        if r.gain_s > 0 or r.note
    ]
    for line in Table(_COLUMNS, rows).lines():
        lines += wrapped(line, "  ", "      ")
    without = [result.change.label for result in results if result.gain_s <= 0 and not result.note]
    if without:
        lines += wrapped(f"no gain: {', '.join(without)}", "  ", "      ")
    return lines


class _Scorer:
    """Seconds of a placement under a change by its number, or under none; each problem is made once."""

    def __init__(self, problem: Problem, changes: Sequence[Change]) -> None:
        self.problems = [problem.moved_to(*apply_change(problem, change)) for change in changes]
        self._under: dict[int | None, Problem] = {None: problem, **dict(enumerate(self.problems))}
        self._instances: dict[int | None, Instance] = {}

    def __call__(self, i: int | None, placement: Placement) -> float:
        return self._under[i].objective.score_s(self._under[i], placement)

    def fits(self, i: int | None, placement: Placement) -> bool:
        instance = self._instances.setdefault(i, Instance.of(self._under[i]))
        return bool((needed_bytes(instance, placement) <= instance.capacity).all())


def _same(a: Placement, b: Placement) -> bool:
    return (a.device_of, a.priority, a.stages, a.cuts) == (b.device_of, b.priority, b.stages, b.cuts)


def _wider(link: Link, factor: float) -> Link:
    return replace(link, seconds_per_byte=link.seconds_per_byte / factor)


def _faster(kind: str, factor: float) -> str:
    return f"{kind} x{factor:g}"


def _link_changes(cluster: Cluster, factor: float) -> list[Change]:
    """Every undirected pair, and every group of two or more pairs that have equal links. The links between
    two hosts with NICs change together, and the NICs with them (`Cluster.with_links`)."""
    rank = {device.name: p for p, device in enumerate(cluster.devices)}
    forward = {(p, q) if rank[p] < rank[q] else (q, p) for p, q in cluster.links}
    pairs = sorted(forward, key=lambda ends: (rank[ends[0]], rank[ends[1]]))
    together: dict[str, list[tuple[str, str]]] = {}
    groups: dict[tuple[float, float], list[tuple[str, str]]] = {}
    for p, q in pairs:
        both = tuple(ends for ends in ((p, q), (q, p)) if ends in cluster.links)
        if all(cluster.links[ends].seconds_per_byte == 0 for ends in both):
            continue
        one, other = cluster.nic(p), cluster.nic(q)
        apart = one is not None and other is not None and one is not other
        label = f"{one.host} <-> {other.host}" if apart else f"{p} <-> {q}"  # type: ignore[union-attr]
        together.setdefault(f"bandwidth {label}", []).extend(both)
        for ends in both:
            link = cluster.links[ends]
            groups.setdefault((link.latency_s, link.seconds_per_byte), []).append(ends)
    changes = [Change("bandwidth", label, (), tuple(ends), factor) for label, ends in together.items()]
    known = {frozenset(change.links) for change in changes}
    for (_, per_byte), ends_of in groups.items():
        several = per_byte > 0 and len({frozenset(ends) for ends in ends_of}) > 1
        if several and frozenset(ends_of) not in known:
            label = f"bandwidth of all {len(ends_of)} links of {1 / per_byte / 1e9:.3g} GB/s"
            changes.append(Change("bandwidth", label, (), tuple(ends_of), factor))
    return changes
