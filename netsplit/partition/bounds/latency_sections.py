"""The folded graph as a row of sections between nodes that everything passes.

    s ──► section ──► t ──► section ──► ...      a step: (device of s, device of t, bytes, seconds s to t)

A section's steps come from a relaxed decision diagram over its nodes; the seconds are at least each path's
and at least the load of each device between s and t.

Source: Bergman, Cire, van Hoeve, Hooker, Decision Diagrams for Optimization, 2016, chapter 4.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.bounds.latency_diagram import narrow_order
from netsplit.partition.bounds.latency_fold import Folded
from netsplit.partition.common.instance import Floats, Ints

__all__ = ["Section", "Steps", "lies_between", "sections_of", "steps_of"]

NEVER = -1e30
CLOCK = 1.0  # cells of time per cell of a device's bytes


@dataclass(frozen=True)
class Section:
    source: int  # -1: the start of the iteration
    target: int  # -1: its end
    nodes: tuple[int, ...]  # in order, the target last
    need: float  # bytes that these nodes add at least


@dataclass(frozen=True, eq=False)
class Steps:
    source: Ints  # [S] device of the section's source
    target: Ints  # [S]
    used: Floats  # [S, D]
    seconds: Floats  # [S]

    def take(self, rows: Any) -> Steps:
        return Steps(self.source[rows], self.target[rows], self.used[rows], self.seconds[rows])


def sections_of(folded: Folded, deadline: float = math.inf) -> list[Section]:
    before = [_before(folded, v) for v in range(folded.count)]
    left = np.bincount([s for each in before for s in each], minlength=folded.count)
    order = narrow_order(before, left.tolist(), (left > 0).tolist(), before, deadline)
    live: set[int] = set()
    sections, source, begin = [], -1, 0
    for k, v in enumerate(order):
        for s in before[v]:
            left[s] -= 1
            if not left[s]:
                live.discard(s)
        if left[v]:
            live.add(v)
        last = k + 1 == len(order)
        # Seconds add up only where the one lies inside of the other, there and back.
        nested = source < 0 or (v in folded.after[source])
        nested = nested and (source < 0 or not folded.backed[source] or source in folded.around[v])
        if (live == {v} and nested) or last:
            nodes = tuple(order[begin : k + 1])
            target = v if live == {v} and not last else -1
            sections.append(Section(source, target, nodes, float(folded.own[list(nodes)].sum())))
            source, begin = v, k + 1
    return sections


def _before(folded: Folded, v: int) -> set[int]:
    return {arc.source for arc in folded.arcs[v]} | {int(folded.producer[u]) for u in folded.reads[v]}


@dataclass(eq=False)
class _SectionLabels:
    device: NDArray[np.int64]  # [L, K] of the live nodes
    ended: Floats  # [L, K] seconds there and back, from the section's source
    present: NDArray[np.int64]  # [L, U] devices with the live variables, as bits
    used: Floats  # [L, D]
    clock: Floats  # [L, D] load of each device since the source
    origin: Ints  # [L] device of the source
    goal: Ints  # [L] device of the section's target, decided first: what only it reads need not stay open
    arrival: Floats  # [L] of all that the target reads, so far

    def take(self, rows: Any) -> _SectionLabels:
        return _SectionLabels(*(getattr(self, k)[rows] for k in _NAMES))


_NAMES = ("device", "ended", "present", "used", "clock", "origin", "goal", "arrival")


def steps_of(
    folded: Folded, section: Section, before: Floats, most_s: float, width: int, deadline: float,
    beyond: float = 0.0,
) -> Steps | None:  # fmt: skip
    """All steps through a section whose iteration could take less than `most_s`.

    Node by node: 1. every label takes the node to every device; 2. nodes and variables that nothing in the
    section reads any more are forgotten; 3. labels that are alike then become one, with the least of each.

    Args:
        before: [D] least seconds up to the source on each device (inf: it cannot be there).
    """
    run = _SectionDiagram(folded, section, before, most_s, beyond)
    for k, v in enumerate(section.nodes):
        if time.perf_counter() > deadline:
            return None
        parts = [run.placed(v, d) for d in range(len(folded.capacity))]  # 1
        run.labels = _SectionLabels(*(np.concatenate([getattr(p, name) for p in parts]) for name in _NAMES))
        run.live.append(v)
        run.variables += run.makes.get(v, [])
        run.forget(k)  # 2
        run.labels = _merge(run.labels, folded.capacity, width)  # 3
        if len(run.labels.origin) > 16 * width:
            return None
    return run.steps()


class _SectionDiagram:
    """The labels of one diagram, and of what their columns are: live nodes and variables, in this order."""

    def __init__(
        self, folded: Folded, section: Section, before: Floats, most_s: float, beyond: float
    ) -> None:
        self.folded, self.section, self.before = folded, section, before
        self.most_s, self.beyond = most_s, beyond
        self.first, self.t = section.source, section.target
        self.makes: dict[int, list[int]] = {}
        for u, s in enumerate(folded.producer.tolist()):
            self.makes.setdefault(s, []).append(u)
        self.into_t = {arc.source: arc for arc in folded.arcs[self.t]} if self.t >= 0 else {}
        self.for_t = set(folded.reads[self.t]) if self.t >= 0 else set[int]()
        self.inside = folded.inside if self.t < 0 else _to_target(folded, section, beyond)
        self.last_read: dict[int, int] = {}
        self.last_use: dict[int, int] = {}
        for k, v in enumerate(section.nodes):
            if v != self.t:
                self.last_read.update((u, k) for u in folded.reads[v])
                self.last_use.update((s, k) for s in _before(folded, v))
        self.live = [self.first] if self.first >= 0 else []
        self.variables = list(self.makes.get(self.first, []))
        self.labels = self._start()

    def _start(self) -> _SectionLabels:
        """The source on every device where it can be, the target on every device."""
        devices = len(self.folded.capacity)
        sources = np.flatnonzero(np.isfinite(self.before)) if self.first >= 0 else np.zeros(1, np.int64)
        goals = np.arange(devices if self.t >= 0 else 1)
        start, goal = (part.reshape(-1) for part in np.meshgrid(sources, goals, indexing="ij"))
        count = len(start)
        labels = _SectionLabels(
            start[:, None][:, : len(self.live)],
            np.zeros((count, len(self.live))),
            np.repeat((1 << start)[:, None], len(self.variables), axis=1),
            np.zeros((count, devices)),
            np.zeros((count, devices)),
            start,
            goal,
            np.full(count, NEVER if self.first >= 0 else 0.0),
        )
        self._send(labels, self.first, start, 0)
        return labels

    def placed(self, v: int, d: int) -> _SectionLabels:
        """The labels that are left when node v is on device d."""
        folded = self.folded
        old = self.labels.take(self.labels.goal == d) if v == self.t else self.labels
        count, mine = len(old.origin), self.makes.get(v, [])
        used, present, clock = old.used.copy(), old.present.copy(), old.clock.copy()
        used[:, d] += folded.own[v]
        if v == self.t:
            ended = np.maximum(old.arrival, clock.max(axis=1))
        else:
            ended = np.full(count, NEVER if self.first >= 0 else 0.0)
            for arc in folded.arcs[v]:
                at = self.live.index(arc.source)
                ended = np.maximum(ended, old.ended[:, at] + arc.seconds[old.device[:, at], d])
            for u in folded.reads[v]:
                at = self.variables.index(u)
                used[:, d] += folded.held[u] * ((present[:, at] >> d) & 1 == 0)
                present[:, at] |= 1 << d
        ended = ended + folded.forward_s[v, d] + folded.backward_s[v, d]
        there, back = lies_between(folded, self.section, v)
        clock[:, d] += there * folded.forward_s[v, d] + back * folded.backward_s[v, d]
        new = _SectionLabels(
            np.column_stack([old.device, np.full(count, d)]),
            np.column_stack([old.ended, ended]),
            np.column_stack([present, np.full((count, len(mine)), 1 << d)]),
            used,
            clock,
            old.origin,
            old.goal,
            old.arrival.copy(),
        )
        if v != self.t:
            self._send(new, v, np.full(count, d), present.shape[1])
        total = self.before[new.origin] if self.first >= 0 else 0.0
        fine = (new.used <= folded.capacity).all(axis=1) & (total + ended + self.inside[v] < self.most_s)
        fine &= total + np.maximum(new.clock.max(axis=1), new.arrival) + self.beyond < self.most_s
        return new.take(fine)

    def _send(self, labels: _SectionLabels, v: int, at: Ints, column: int) -> None:
        """What the section's target reads of node v, now on devices `at`, goes to its device at once.

        The variables of v have their columns from `column` on.
        """
        if v in self.into_t:
            ended = labels.ended[:, -1] + self.into_t[v].seconds[at, labels.goal]
            labels.arrival = np.maximum(labels.arrival, ended)
        rows = np.arange(len(at))
        for k, u in enumerate(self.makes.get(v, [])):
            if u in self.for_t:
                labels.used[rows, labels.goal] += self.folded.held[u] * (at != labels.goal)
                labels.present[:, column + k] |= 1 << labels.goal

    def forget(self, k: int) -> None:
        """Drop what no node after the section's k-th reads."""
        labels, live = self.labels, self.live
        kept = [j for j, u in enumerate(self.variables) if self.last_read.get(u, -1) > k]
        final = k + 1 == len(self.section.nodes)
        # Of the last section, the end is the latest of all: it is kept as one more live node.
        keep = [
            j for j, s in enumerate(live) if self.last_use.get(s, -1) > k or (final and j + 1 == len(live))
        ]
        if self.t < 0:
            tops = [j for j in range(len(live)) if j not in keep or j + 1 == len(live)]
            last = labels.ended[:, tops].max(axis=1, initial=NEVER)
            labels.arrival = np.maximum(labels.arrival, last)
        self.live = [live[j] for j in keep]
        self.variables = [self.variables[j] for j in kept]
        labels.device, labels.ended = labels.device[:, keep], labels.ended[:, keep]
        labels.present = labels.present[:, kept]

    def steps(self) -> Steps:
        labels = self.labels
        if self.t < 0:
            seconds = np.maximum(labels.clock.max(axis=1, initial=0.0), labels.arrival)
            target = np.zeros(len(labels.origin), np.int64)
        else:
            seconds, target = labels.ended[:, -1], labels.device[:, -1]
        return Steps(labels.origin, target, labels.used, np.maximum(seconds, 0.0))


def _to_target(folded: Folded, section: Section, beyond: float) -> Floats:
    """[N] least seconds of an iteration after a node of the section, there and back."""
    fastest = (folded.forward_s + folded.backward_s).min(axis=1)
    seconds = np.full(folded.count, 0.0)
    seconds[section.target] = beyond
    for v in reversed(section.nodes):
        for arc in folded.arcs[v]:
            if v == section.target or seconds[v] > 0:
                seconds[arc.source] = max(seconds[arc.source], seconds[v] + fastest[v])
    return seconds


def lies_between(folded: Folded, section: Section, v: int) -> tuple[bool, bool]:
    """Whether the forward, and the backward, of v lie between those of the section's ends."""
    s, t = section.source, section.target
    if v == t:
        return False, False
    there = (s < 0 or v in folded.after[s]) and (t < 0 or t in folded.after[v])
    back = (s < 0 or s in folded.around[v]) and (t < 0 or v in folded.around[t])
    return there, back


def _codes(columns: list[Any]) -> Ints:
    """[L] numbers, equal where all columns are equal."""
    code, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        values = column.astype(np.int64)
        values -= values.min(initial=0)
        span = int(values.max(initial=0)) + 1
        if size * span > 2**62:
            _, code = np.unique(code, return_inverse=True)
            code = code.reshape(-1).astype(np.int64)
            size = int(code.max()) + 1
        code = code * span + values
        size *= span
    return code


def _merge(labels: _SectionLabels, capacity: Floats, width: int) -> _SectionLabels:
    if len(labels.origin) <= 1:
        return labels
    state = [labels.origin, labels.goal, *labels.device.T, *labels.present.T]
    base = _codes(state)
    filled = labels.used / np.maximum(capacity, 1.0)
    clock = labels.clock[np.arange(len(labels.origin)), labels.origin]
    load = clock / max(float(clock.max()), 1e-300)
    cells = 1e6
    while True:
        columns = [base, *(np.floor(filled * cells)).T]
        columns.append(np.floor(load * min(cells, 1e6) * CLOCK))
        _, code = np.unique(_codes(columns), return_inverse=True)
        code = code.reshape(-1)
        if int(code.max()) + 1 <= width or cells < 1:
            break
        cells /= 3 if cells > 1e3 else 1.4
    if int(code.max()) + 1 == len(code):
        return labels
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    merged = labels.take(order[starts])
    for name in ("ended", "used", "clock", "arrival"):
        values = getattr(labels, name)[order]
        if values.ndim == 1 or values.shape[1]:
            setattr(merged, name, np.minimum.reduceat(values, starts, axis=0))
    return merged
