"""What would help: the objective with 10 % more memory, speed or bandwidth, decided anew and not guessed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any, Literal

import numpy as np

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.errors import NetSplitError
from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import needed_bytes
from netsplit.partition.common.instance import Instance
from netsplit.partition.partitioner import Partitioner
from netsplit.placement.placement import Placement
from netsplit.planning.decide import decide
from netsplit.planning.explanation.notation import listed, percent, seconds, wrapped
from netsplit.profile.costs import Costs
from netsplit.tables import Column, Table

__all__ = ["Change", "WhatIf", "apply_change", "possible_changes", "what_if", "what_if_lines"]

MORE = 1.1
_SHOWN = 0.0005  # of the objective: the least gain that one decimal of a percentage shows
_COLUMNS = (Column("", text=True), Column(""), Column(""), Column("", text=True))


@dataclass(frozen=True)
class Change:
    """More of one resource, of devices that are alike (or of their ports) or of directed links."""

    resource: Literal["memory", "speed", "bandwidth"]
    label: str  # "memory of d0", "bandwidth of 6 links of 1 GB/s"
    devices: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class WhatIf:
    """The objective with a change, in seconds."""

    change: Change
    base_s: float  # without it: the best placement known, among those found for the changes too
    value_s: float
    note: str = ""  # why it was not decided anew

    @property
    def gain_s(self) -> float:
        return self.base_s - self.value_s

    @property
    def shows(self) -> bool:
        """Whether the gain reads as more than 0.0 %."""
        return self.gain_s >= _SHOWN * self.base_s and self.gain_s > 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"gain_s": self.gain_s}


def what_if(
    problem: Problem, partitioner: Partitioner, placement: Placement, time_limit_s: float = 60.0
) -> list[WhatIf]:
    """Decide the problem again under each change with the same method; what gains most comes first.

    Args:
        placement: decided for the problem as it is.
        time_limit_s: of all changes, each of which gets an equal part of what is left.
    """
    changes = list(possible_changes(problem))
    deadline = monotonic() + time_limit_s
    base_s = problem.objective.score_s(problem, placement)
    values: list[tuple[float, str]] = []
    for i, change in enumerate(changes):
        changed = problem.moved_to(*apply_change(problem, change))
        value, note = changed.objective.score_s(changed, placement), ""
        limit = (deadline - monotonic()) / (len(changes) - i)
        if limit <= 0:
            values.append((value, "not decided anew: the time was up"))
            continue
        limit = limit if problem.time_limit_s is None else min(limit, problem.time_limit_s)
        try:
            other = decide(replace(changed, time_limit_s=limit), partitioner, room=False).placement
        except NetSplitError:
            note = "the method finds no plan under the change"
        else:
            value = min(value, changed.objective.score_s(changed, other))
            if _fits(problem, other):
                base_s = min(base_s, problem.objective.score_s(problem, other))
        values.append((value, note))
    results = [
        WhatIf(change, base_s, min(base_s, value), note)
        for change, (value, note) in zip(changes, values, strict=True)
    ]
    return sorted(results, key=lambda result: -result.gain_s)


def _fits(problem: Problem, placement: Placement) -> bool:
    instance = Instance.of(problem)
    return bool((needed_bytes(instance, placement) <= instance.capacity).all())


def possible_changes(problem: Problem) -> Iterator[Change]:
    """Memory and speed of the devices that are alike, bandwidth of the links (or ports) that are.

    What is not likely to matter is left out: the memory of a device that can hold the whole graph by the
    linear count of `Problem.memory_model`, and links which the objective does not count.
    """
    devices, links = problem.cluster.devices, problem.cluster.links
    instance = Instance.of(problem)
    whole = int(instance.used_bytes(np.zeros(instance.n, np.int64)).max(initial=0))
    alike: dict[tuple[str, int], list[str]] = {}
    kinds: dict[str, list[str]] = {}
    for device in devices:
        alike.setdefault((device.kind, device.capacity_bytes), []).append(device.name)
        kinds.setdefault(device.kind, []).append(device.name)
    for (_, capacity), names in alike.items():
        if capacity < whole:
            yield Change("memory", f"memory of {_named(names)}", tuple(names))
    for names in kinds.values():
        yield Change("speed", f"speed of {_named(names)}", tuple(names))
    with_port = set[str]()
    if problem.objective.over_ports:
        with_port = {device.name for device in devices if device.port is not None}
        if ports := [d.name for d in devices if d.port is not None and d.port.seconds_per_byte > 0]:
            yield Change("bandwidth", f"bandwidth of the ports of {_named(ports)}", tuple(ports))
    paces: dict[float, list[tuple[str, str]]] = {}
    for ends, link in links.items():
        if link.seconds_per_byte > 0 and not with_port.issuperset(ends):
            paces.setdefault(link.seconds_per_byte, []).append(ends)
    for pace, same in paces.items():
        label = f"bandwidth of {len(same)} links of {1 / pace / 1e9:.3g} GB/s"
        yield Change("bandwidth", label, links=tuple(same))


def _named(names: Sequence[str]) -> str:
    return listed(names) if len(names) <= 3 else f"{len(names)} devices ({names[0]} .. {names[-1]})"


def apply_change(problem: Problem, change: Change) -> tuple[Cluster, Costs]:
    """The cluster and the costs of a problem with a change made. Bytes are rounded down.

    A faster device is of a further kind: its own at that speed (`DeviceCosts.scaled`).
    """
    cluster, costs = problem.cluster, problem.costs

    def changed(device: Device) -> Device:
        if device.name not in change.devices:
            return device
        if change.resource == "memory":
            return replace(device, capacity_bytes=int(device.capacity_bytes * MORE))
        if change.resource == "speed":
            return replace(device, kind=_faster(device.kind))
        return device if device.port is None else replace(device, port=_wider(device.port))

    wider = {ends: _wider(cluster.links[ends]) for ends in change.links}
    if change.resource == "speed":
        kinds = {device.kind for device in cluster.devices if device.name in change.devices}
        faster = {_faster(kind): costs.devices[kind].scaled(MORE) for kind in kinds}
        costs = replace(costs, devices=costs.devices | faster)
    devices = tuple(map(changed, cluster.devices))
    return replace(cluster, devices=devices).with_links(cluster.links | wider), costs


def _wider(link: Link) -> Link:
    return replace(link, seconds_per_byte=link.seconds_per_byte / MORE)


def _faster(kind: str) -> str:
    return f"{kind} x{MORE:g}"


def what_if_lines(results: Sequence[WhatIf]) -> list[str]:
    """A table of at most 100 columns; what would read as 0.0 % is no gain."""
    if not results:
        return ["nothing to change"]
    base = results[0].base_s
    more = f"{100 * (MORE - 1):.0f} % more"
    lines = [f"what would help, decided anew ({seconds(base)} as it is):"]
    rows = [
        (f"{more} {r.change.label}", seconds(r.value_s), f"-{percent(r.gain_s, base, 1)}", r.note)
        for r in results
        if r.shows or r.note
    ]
    for line in Table(_COLUMNS, rows).lines() if rows else ():
        lines += wrapped(line, "  ", "      ")
    without = [result.change.label for result in results if not (result.shows or result.note)]
    if without:
        lines += wrapped(f"no gain: {', '.join(without)}", "  ", "      ")
    return lines
