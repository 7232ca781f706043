"""The tasks of a pipeline as numbers, and which follow which: what list scheduling walks over.

A cell is a micro-batch of a segment, `s * m + i`. Its forward has the cell's number, its (input) backward as
many more as there are cells, its weight backward twice as many more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import get_args

from netsplit.program.schedules.base import Compute, Phase, Pipeline, TaskTimes

__all__ = ["TaskLinks", "task_links"]


@dataclass(frozen=True, eq=False)
class TaskLinks:
    """Of one shape of pipelines and a number of micro-batches, however backwards are split."""

    names: tuple[str, ...]  # of devices
    microbatches: int
    segments: int
    cells: int
    device: list[int]  # of each cell
    trained: list[bool]  # cells with a backward
    following: list[int]  # the segment's next cell on the same device; -1: none
    followers: list[list[int]]  # of each forward and (input) backward, but for weight backwards

    @cached_property
    def named(self) -> dict[Phase, list[Compute]]:
        """Of every phase the tasks of all cells: one object for all orders that have it."""
        cells = [divmod(cell, self.microbatches) for cell in range(self.cells)]
        return {phase: [(phase, s, i) for s, i in cells] for phase in get_args(Phase)}

    @cached_property
    def _waiting(self) -> list[int]:
        """How many tasks each forward and (input) backward waits for."""
        missing = [0] * (2 * self.cells)
        for following in self.followers:
            for follower in following:
                missing[follower] += 1
        return missing

    def tasks(self, split: Sequence[bool]) -> list[Compute | None]:
        """By number; None: there is no such task where the micro-batches of `split` have two parts."""
        m, named, trained = self.microbatches, self.named, self.trained
        cells = range(self.cells)
        parts, wholes, weights = named["input"], named["backward"], named["weight"]
        backs = [(parts[c] if split[c % m] else wholes[c]) if trained[c] else None for c in cells]
        put_off = [weights[c] if trained[c] and split[c % m] else None for c in cells]
        return [*named["forward"], *backs, *put_off]

    def missing(self, split: Sequence[bool]) -> list[int]:
        """How many tasks each waits for."""
        missing = [*self._waiting, *[0] * self.cells]
        for t in range(self.cells, 3 * self.cells) if any(split) else ():
            for follower in self.weights_after(t, split):
                missing[follower] += 1
        return missing

    def weights_after(self, t: int, split: Sequence[bool]) -> tuple[int, ...]:
        """Weight backwards that wait for a backward, in whichever part; one that does not exist has none."""
        cell, cells = t % self.cells, self.cells
        if t < cells or not self.trained[cell] or not split[cell % self.microbatches]:
            return ()
        if t < 2 * cells:
            return (cell + 2 * cells,)
        cell = self.following[cell]
        while cell >= 0 and not split[cell % self.microbatches]:
            cell = self.following[cell]
        return () if cell < 0 else (cell + 2 * cells,)

    def seconds(self, tasks: Sequence[Compute | None], times: TaskTimes) -> list[float]:
        """Of each task; 0 of those that do not exist."""
        names, computing = self.names, times.computing
        homes = [names[d] for d in self.device] * 3
        pairs = zip(tasks, homes, strict=True)
        return [0.0 if task is None else computing[task[0], task[1], home] for task, home in pairs]

    def delays(self, times: TaskTimes | None) -> list[list[float]]:
        """Until the result of a task is there for each of its `followers`; empty: at once for all."""
        if times is None or not (times.moving or times.returning):
            return [[]] * len(self.followers)
        return _delays(self, times)

    def delay(self, t: int, follower: int, times: TaskTimes) -> float:
        """Between a task and one that waits for it."""
        here, there = t % self.cells, follower % self.cells
        s, v = here // self.microbatches, there // self.microbatches
        if s == v:
            return 0.0
        p, q = self.names[self.device[here]], self.names[self.device[there]]
        return (
            times.moving.get((s, v, p, q), 0.0) if t < self.cells else times.returning.get((v, s, q, p), 0.0)
        )


@lru_cache(maxsize=2)
def _delays(links: TaskLinks, times: TaskTimes) -> list[list[float]]:
    return [[links.delay(t, f, times) for f in each] for t, each in enumerate(links.followers)]


def task_links(pipeline: Pipeline, microbatches: int) -> TaskLinks:
    """Kept: one pipeline is scheduled in many ways."""
    return _links(
        pipeline.feeders, pipeline.turns or pipeline.devices, pipeline.devices, pipeline.trained, microbatches
    )


@lru_cache(maxsize=16)
def _links(
    feeders: tuple[tuple[int, ...], ...],
    turns: tuple[tuple[str, ...], ...],
    devices: tuple[tuple[str, ...], ...],
    trained: frozenset[int],
    m: int,
) -> TaskLinks:
    pipeline = Pipeline(feeders, devices, trained, turns)
    names = tuple(pipeline.names)
    rank = {name: d for d, name in enumerate(names)}
    readers, cells = pipeline.readers(), len(pipeline) * m
    device = [rank[pipeline.on(s, i)] for s in range(len(pipeline)) for i in range(m)]
    following = [-1] * cells
    for s in range(len(pipeline)):
        last: dict[int, int] = {}
        for cell in range(s * m, s * m + m):
            if device[cell] in last:
                following[last[device[cell]]] = cell
            last[device[cell]] = cell
    followers: list[list[int]] = [[] for _ in range(2 * cells)]
    for cell in range(cells):
        s, i = divmod(cell, m)
        after = [following[cell]] if following[cell] >= 0 else []
        followers[cell] = after + [v * m + i for v in readers[s]]
        if s in trained:
            followers[cell].append(cells + cell)
            back = [u * m + i for u in feeders[s] if u in trained]
            followers[cells + cell] = [cells + each for each in after + back]
    own = [s in trained for s in range(len(pipeline)) for _ in range(m)]
    return TaskLinks(names, m, len(pipeline), cells, device, own, following, followers)
