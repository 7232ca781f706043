"""The cut of a line into stages for given groups of devices, whose slowest stage is the fastest.

The dynamic programme of PipeDream (Narayanan et al., SOSP 2019, section 3.1) and Piper (Tarnawski et al.,
NeurIPS 2021) with the groups and their order given, unlike devices, and memory by what is in flight:

    f[g][c] = min over b < c of max(f[g - 1][b], period of the run b..c on group g)

A run that does not fit may fit with its activations computed again, for another forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from netsplit.partition.base import Problem, Stage
from netsplit.partition.common.instance import Floats, Ints
from netsplit.partition.common.layers import Bools
from netsplit.planning.whole.line import NodeLine

__all__ = ["Group", "LineStages", "StageCosts", "stages_of_line"]

Group = tuple[int, ...]
"""Ranks of the devices that are to be a stage's replicas."""


@dataclass(frozen=True, eq=False)
class LineStages:
    """Stages in order, as (begin, end) cuts, one a group."""

    runs: tuple[tuple[int, int], ...]
    groups: tuple[Group, ...]
    work_s: float = 0.0  # at least, of a micro-batch on the slowest stage of any cut for these groups

    def stages(self, line: NodeLine, names: Sequence[str]) -> tuple[Stage, ...]:
        """As a placement has them; each device named by its rank."""
        workers = [len(group) for group in self.groups]
        return tuple(
            Stage(
                line.nodes(begin, end),
                tuple(names[q] for q in group),
                ceil(sum(workers[g:]) / workers[g]) - 1,
            )
            for g, ((begin, end), group) in enumerate(zip(self.runs, self.groups, strict=True))
        )


@dataclass(frozen=True, eq=False)
class StageCosts:
    """What the programme counts, [C, C] from begin (row) to end (column) of a run."""

    problem: Problem
    line: NodeLine
    microbatches: int
    recompute: bool  # where a run does not fit otherwise
    added: bool  # transfers come on top of computing; else the longer of both counts

    def period_s(self, groups: Sequence[Group], g: int) -> Floats:
        """Seconds a micro-batch of every run as stage g; inf where it does not fit."""
        line, group = self.line, groups[g]
        work = self._spread(line.seconds, group) + self._summed_s(group)
        moved = self._moved_s(groups, g)
        kept = self._fits(groups, g, keep=True)
        seconds = work + moved if self.added else np.maximum(work, moved)
        period = np.where(kept, seconds, np.inf)
        if self.recompute:
            again = self._spread(line.forward_s, group)
            fits = self._fits(groups, g, keep=False)
            period = np.where(~kept & fits, seconds + again, period)
        return np.asarray(np.where(_runs(len(line.places)), period, np.inf))

    def _spread(self, until: Floats, group: Group) -> Floats:
        """Seconds of a micro-batch where the group takes them as fast as its devices are."""
        each = [_difference(until[:, q]) for q in group]
        with np.errstate(divide="ignore"):
            together = 1.0 / sum(1.0 / np.maximum(seconds, 1e-15) for seconds in each)
        # The last round of micro-batches may not fill all replicas.
        m, r = self.microbatches, len(group)
        return np.asarray(together * (ceil(m / r) * r / m if _alike(each) else 1.0))

    def _summed_s(self, group: Group) -> Floats:
        """A micro-batch's part of the sum of gradients over a ring."""
        line, r = self.line, len(group)
        if r < 2:
            return np.zeros((len(line.places),) * 2)
        latency_s, per_byte = self._link(group, group)
        rounds_s = latency_s + _difference(line.trained_bytes) / r * per_byte
        return np.asarray(2 * (r - 1) * rounds_s / self.microbatches)

    def _moved_s(self, groups: Sequence[Group], g: int) -> Floats:
        """What comes in at a run's begin and goes back there, shared by the replicas."""
        line = self.line
        if g == 0:
            return np.zeros((len(line.places),) * 2)
        latency_s, per_byte = self._link(groups[g - 1], groups[g])
        each = 2 * latency_s + (line.sent_bytes + line.returned_bytes) * per_byte
        ways = min(len(groups[g - 1]), len(groups[g]))
        return np.asarray(np.broadcast_to((each / ways)[:, None], (len(each), len(each))))

    def _link(self, sources: Group, targets: Group) -> tuple[float, float]:
        """The slowest between two groups, as latency and seconds per byte."""
        devices, links = self.problem.cluster.devices, self.problem.cluster.links
        pairs = [(devices[p].name, devices[q].name) for p in sources for q in targets if p != q]
        return (
            max((links[pair].latency_s for pair in pairs), default=0.0),
            max((links[pair].seconds_per_byte for pair in pairs), default=0.0),
        )

    def _fits(self, groups: Sequence[Group], g: int, keep: bool) -> Bools:
        """[C, C] whether a run fits on every device of the group, under 1F1B."""
        line, r = self.line, len(groups[g])
        behind = sum(len(group) for group in groups[g:])
        flight = min(ceil(self.microbatches / r), ceil(behind / r))
        saved = _difference(line.saved_bytes)
        alive = flight * saved if keep else saved + flight * line.sent_bytes[:, None]
        capacity = min(self.problem.cluster.devices[q].capacity_bytes for q in groups[g])
        return np.asarray(_difference(line.state_bytes) + alive <= capacity)


def stages_of_line(costs: StageCosts, groups: Sequence[Group]) -> LineStages | None:
    """The best cut for groups in this order, each with a stage of its own; None: none fits."""
    count = len(costs.line.places)
    least = np.full(count, np.inf)
    least[0] = 0.0
    begins = []
    for g in range(len(groups)):
        trial = np.maximum(least[:, None], costs.period_s(groups, g))
        begins.append(trial.argmin(axis=0))
        least = trial[begins[-1], np.arange(count)]
    if not np.isfinite(least[-1]):
        return None
    runs, end = [], count - 1
    for chosen in reversed(begins):
        begin = int(chosen[end])
        runs.append((begin, end))
        end = begin
    return LineStages(tuple(reversed(runs)), tuple(groups), _least_work_s(costs, groups))


def _least_work_s(costs: StageCosts, groups: Sequence[Group]) -> float:
    """Of all computing over all devices: no cut has a shorter slowest stage."""
    every = [costs.line.seconds[-1, q] for group in groups for q in group]
    return float(1.0 / sum(1.0 / max(seconds, 1e-15) for seconds in every))


def _difference(until: Floats | Ints) -> Floats:
    """[C, C] what lies between two cuts."""
    return np.asarray(until[None, :] - until[:, None], float)


def _runs(count: int) -> Bools:
    """[C, C] begin before end."""
    places = np.arange(count)
    return np.asarray(places[:, None] < places[None, :])


def _alike(each: Sequence[Floats]) -> bool:
    return all(np.array_equal(each[0], other) for other in each[1:])
