"""`netsplit`: the method of the NetSplit thesis, co-placement and constrained optimisation (5.2)."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from netsplit.errors import ConfigError
from netsplit.partition.base import Problem, Status
from netsplit.partition.common.atoms import atoms_of
from netsplit.partition.common.capacity import fill_in_order, infeasible
from netsplit.partition.engines.mixed_integer import EngineName, Outcome, check_engine, solve
from netsplit.partition.methods.thesis.coplace import coplace
from netsplit.partition.methods.thesis.formulation import Formulation
from netsplit.partition.methods.thesis.thesis_times import thesis_times
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.profile.memory import static_bytes

__all__ = ["NetSplit"]

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class NetSplit(Partitioner):
    """Groups by co-placement, then the placement of groups with the least makespan (5-11).

    Faithful to the thesis: nodes of one device may overlap in the model, memory is the static sum
    (5-18), and co-placement stops at 2 x devices groups. One thing is added: where these groups
    cannot be packed, the number of groups is doubled until they can, as finer groups might.

    With `exclusive`, devices compute one operator at a time and links carry one transfer at a time: the
    placement with the shortest list-scheduled step is taken, by trying all or, with many groups, by
    annealing. `gap` and `engine` count for nothing then, and there is a bound only where all were tried.

    The report's objective is the makespan of the answer in seconds; status, bound and gap are with
    respect to its groups. Status "limit" says that nothing was found in time and that the answer is
    the fill of the devices in topological order.
    """

    time_limit_s: float = 60.0
    gap: float = 1e-4  # relative distance of objective and bound at which the search may stop
    engine: EngineName = "auto"
    groups: int | None = None  # least number of groups; None: 2 x devices (Algorithm 3, line 6)
    exclusive: bool = False  # one operator at a time on a device, one transfer on a link

    name = "netsplit"

    @property
    def optimises(self) -> str:  # type: ignore[override]
        return f"one pass {'with' if self.exclusive else 'without'} exclusive devices (5-11)"

    def __post_init__(self) -> None:
        if not self.time_limit_s > 0:
            raise ConfigError(f"netsplit.time_limit_s is {self.time_limit_s}: give more than 0 seconds.")
        if not 0 <= self.gap < 1:
            raise ConfigError(f"netsplit.gap is {self.gap}: give a fraction from 0 to below 1, as 0.0001.")
        if self.groups is not None and self.groups < 1:
            raise ConfigError(f"netsplit.groups is {self.groups}: give 1 or more, or null for 2 x devices.")
        check_engine(self.engine)

    def choose(self, problem: Problem) -> Choice:
        deadline = time.perf_counter() + min(self.time_limit_s, problem.time_limit_s or self.time_limit_s)
        place = self._shortest_step if self.exclusive else self._least_makespan
        atoms = len(atoms_of(problem.graph))
        least = self.groups or 2 * len(problem.cluster.devices)
        tried: list[int] = []
        while True:
            groups = coplace(problem, least)
            tried.append(len(groups))
            outcome, device_of = place(problem, groups, deadline)
            if outcome.status != "infeasible" or len(groups) >= atoms:
                break
            least = 2 * len(groups)
        if device_of is None:
            device_of = self._without_solution(problem, outcome.status)
        makespan, start = self._times(problem, device_of)
        notes: dict[str, Any] = {"groups": tried[-1], **outcome.notes}
        if len(tried) > 1:
            notes["groups_without_packing"] = tried[:-1]
        return Choice(
            device_of,
            start,
            status=outcome.status,
            engine=outcome.engine,
            objective_s=makespan,
            bound_s=outcome.bound,
            notes=notes,
        )

    def _shortest_step(
        self, problem: Problem, groups: Groups, deadline: float
    ) -> tuple[Outcome, dict[str, str] | None]:
        from netsplit.partition.methods.thesis.exclusive import shortest_step

        return shortest_step(problem, groups, deadline)

    def _least_makespan(
        self, problem: Problem, groups: Groups, deadline: float
    ) -> tuple[Outcome, dict[str, str] | None]:
        """The engine's answer, with the bound in seconds.

        Engines take a row as met within a tolerance. Where the answer so exceeds a capacity by a
        few bytes, the problem is solved again with that much less capacity.
        """
        margin: dict[str, int] = {}
        while True:
            formulation = Formulation(problem, groups, margin)
            model = formulation.build()
            left_s = deadline - time.perf_counter()
            outcome = solve(model, engine=self.engine, time_limit_s=left_s, gap=self.gap, seed=problem.seed)
            if outcome.values is None:
                return outcome, None
            device_of = formulation.decode(
                outcome.vector("place", len(groups) * len(problem.cluster.devices))
            )
            over = _excess(problem, device_of)
            if not over:
                assert outcome.bound is not None
                return replace(outcome, bound=outcome.bound * formulation.unit_s), device_of
            for device, nbytes in over.items():
                slight = 1 + problem.cluster.device(device).capacity_bytes // 1000
                assert nbytes <= slight, "the model's memory rows and the static bytes disagree"
                margin[device] = margin.get(device, 0) + nbytes

    def _without_solution(self, problem: Problem, status: Status) -> dict[str, str]:
        """The fill in topological order after a time limit; an error where that does not fit either."""
        if status == "limit":
            filled = fill_in_order(problem, [d.capacity_bytes for d in problem.cluster.devices])
            if filled is not None:
                return filled
        raise infeasible(problem, self.name)

    def _times(self, problem: Problem, device_of: dict[str, str]) -> tuple[float, dict[str, float]]:
        """Makespan in seconds, and what forward computations are ordered by."""
        if self.exclusive:
            from netsplit.partition.methods.thesis.exclusive import list_scheduled

            return list_scheduled(problem, device_of)
        times = thesis_times(problem, device_of)
        return times.makespan, times.start_fp


def _excess(problem: Problem, device_of: dict[str, str]) -> dict[str, int]:
    """Device name to the bytes by which a placement exceeds its capacity, where it does."""
    used = static_bytes(problem.graph, device_of, problem.costs.alpha, problem.copies)
    over = {name: nbytes - problem.cluster.device(name).capacity_bytes for name, nbytes in used.items()}
    return {name: nbytes for name, nbytes in over.items() if nbytes > 0}
