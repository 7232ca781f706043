"""What differs between two placements, and what it changes: in numbers, and as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from netsplit.planning.explanation.notation import (
    arriving_lines,
    counted,
    node_run,
    percent,
    seconds,
    short,
    wrapped,
)
from netsplit.planning.explanation.parts import PlacedSplit, parts_lines
from netsplit.planning.explanation.uses import CutEdge
from netsplit.tables import nbytes

__all__ = ["DeviceChange", "MovedGroup", "Part", "PlanDiff"]


@dataclass(frozen=True)
class MovedGroup:
    """Connected nodes that went from one device to another. Seconds are of one micro-batch."""

    nodes: tuple[str, ...]  # in graph order
    module: str  # dotted prefix that their modules share
    source: str
    target: str
    before_s: float  # forward and backward on the old device
    after_s: float  # and on the new
    state_bytes: int  # of its nodes' parameters, gradients and optimiser states, also what was there already


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
    split: tuple[PlacedSplit, ...] = ()  # these five as of `PartsChange`
    recut: tuple[PlacedSplit, ...] = ()
    joined: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    uncopied: tuple[str, ...] = ()
    arriving: Mapping[str, int] = field(default_factory=dict)  # of `newly_held_bytes`; empty: not known

    def without_rounding(self) -> PlanDiff:
        """The change without what differs only by the order in which floats were added."""
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

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, Any]:
        """Numbers, strings, lists and mappings only."""
        return asdict(self) | {"nodes": self.nodes}


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
            f" {seconds(group.before_s)} before, {seconds(group.after_s)} now"
            f"{'' if diff.arriving else f', {nbytes(group.state_bytes)} of states'}",
            "  ",
            "      ",
        )
    if len(diff.groups) > top:
        rest = sum(len(group.nodes) for group in diff.groups[top:])
        lines.append(f"  and {counted(len(diff.groups) - top, 'more group')} with {counted(rest, 'node')}")
    for text in arriving_lines(diff.arriving):
        lines += wrapped(text, "  ", "      ")
    for now, splits in (("now", diff.split), ("now in other parts:", diff.recut)):
        for text in parts_lines(splits):
            lines += wrapped(f"{now} {text}", "  ", "      ")
    named = (
        ("whole again", diff.joined),
        ("now with copies of weights", diff.copied),
        ("no more copies of weights", diff.uncopied),
        ("now recomputed", diff.recomputed),
        ("no longer recomputed", diff.kept),
    )
    for what, names in named:
        if names:
            lines += wrapped(f"{what}: {counted(len(names), 'node')}, {node_run(names)}", "  ", "      ")
    changed = diff.groups or diff.split or diff.recut or any(names for _, names in named)
    changed = changed or any(map(_differs, diff.devices))
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
    """Whether more than rounding differs; where nothing moved, replicas or their turns may."""
    same = device.nodes_before == device.nodes_after
    return not (same and math.isclose(device.before_s, device.after_s, abs_tol=1e-15))


def _headline(diff: PlanDiff) -> str:
    copies = diff.copied + diff.uncopied
    changes = [
        (diff.nodes, f"moved in {counted(len(diff.groups), 'group')}", "node"),
        (len(diff.split), "newly cut in parts", "operator"),
        (len(diff.recut), "in other parts", "operator"),
        (len(diff.joined), "whole again", "operator"),
        (len(copies), "with other copies of weights", "node"),
    ]
    words = [f"{counted(number, what)} {how}" for number, how, what in changes if number]
    if not words:
        words = ["nothing moved"]
        if diff.reordered:
            words.append(f"{counted(diff.reordered, 'node')} at another place in the order")
    return f"{diff.before} to {diff.after}: {'; '.join(words)}"


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
