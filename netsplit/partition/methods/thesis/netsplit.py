"""`netsplit`: the method of the NetSplit thesis, co-placement and constrained optimisation (5.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from netsplit.partition.base import Problem
from netsplit.partition.engines.outcome import Outcome
from netsplit.partition.methods.thesis.exclusive import list_scheduled, shortest_step
from netsplit.partition.methods.thesis.grouped import Grouped, Groups
from netsplit.partition.methods.thesis.thesis_times import thesis_times

__all__ = ["NetSplit"]


@dataclass(frozen=True)
class NetSplit(Grouped):
    """Groups by co-placement, then the placement of groups with the least makespan (5-11).

    As in the thesis: nodes of one device may overlap in the model, memory is a sum in which a variable
    counts once on a device, of groups too (Algorithm 1), and co-placement stops at 2 x devices groups
    (Algorithm 3). The sum is the thesis's own (5-18) under ``memory=static``; by default it is what lives
    from forward to backward, corrected by simulated peaks. One thing is added: where these groups cannot be
    packed, the number of groups is doubled until they can, as finer groups might. Not the thesis's are
    `group_bytes="added"`, which ends groups earlier (`coplace`), another number of `groups`, and `exclusive`.

    With `exclusive`, devices compute one operator at a time and links carry one transfer at a time: the
    placement with the shortest list-scheduled step is taken, by trying all or, with many groups, by
    annealing. `gap` and `engine` count for nothing then, and there is a bound only where all were tried.

    The report's objective is the makespan of the answer in seconds.
    """

    exclusive: bool = False  # one operator at a time on a device, one transfer on a link

    name = "netsplit"

    @property
    def optimises(self) -> str:  # type: ignore[override]
        if self.exclusive:
            return "one pass; a device runs one operator at a time, as (5-11) asks"
        return "one pass, without exclusive devices (5-11): operators of one device may overlap"

    def limit_s(self, problem: Problem) -> float:
        return min(self.time_limit_s, problem.time_limit_s or self.time_limit_s)

    def place(
        self, problem: Problem, groups: Groups, deadline: float
    ) -> tuple[Outcome, dict[str, str] | None]:
        if self.exclusive:
            return shortest_step(problem, groups, deadline)
        return super().place(problem, groups, deadline)

    def times(self, problem: Problem, device_of: Mapping[str, str]) -> tuple[float, Mapping[str, float]]:
        if self.exclusive:
            return list_scheduled(problem, device_of)
        times = thesis_times(problem, device_of)
        return times.makespan, times.start_fp
