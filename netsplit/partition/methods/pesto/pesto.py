"""`pesto`: the Pesto baseline of the NetSplit thesis, extended to any number of devices (6-2)..(6-7).

    minimise makespan                                                                      (6-2)
    start(i) = 0 of entry nodes                                                            (6-3)
    end(i) = start(i) + seconds(i),  makespan >= end(i)                                    (6-4)
    sum_p place(g,p) = 1, place binary                                                     (6-5)
    commu = sum of place(i,p) place(j,q) F(i,j,p,q),  start(j) >= end(i) + commu     (6-6), (6-7)

Source: NetSplit thesis, section 6.2.1. It has neither the non-overlap nor the congestion rows of the
original (`pesto_full`), and sees the forward pass alone, which section 5.2.1 names as Pesto's flaw.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from netsplit.errors import ConfigError
from netsplit.partition.base import Problem
from netsplit.partition.common.atoms import atoms_of
from netsplit.partition.common.capacity import fill_in_order, infeasible
from netsplit.partition.engines.mixed_integer import EngineName, Outcome, check_engine, solve
from netsplit.partition.engines.rows import Rows
from netsplit.partition.methods.thesis.coplace import coplace
from netsplit.partition.methods.thesis.formulation import Formulation
from netsplit.partition.methods.thesis.thesis_times import thesis_times
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.profile.memory import static_bytes

__all__ = ["Pesto", "PestoFormulation", "forward_makespan"]


class PestoFormulation(Formulation):
    """(5-11)..(5-18) less everything about the backward pass: (6-2)..(6-7), and the memory of (5-18)."""

    def _start_rows(self) -> Rows:
        """(6-3)."""
        rows = Rows()
        for name in self.problem.graph.entry_nodes:
            rows.add([("start_fp", self.index[name], 1.0)])
        return rows

    def _makespan_rows(self) -> Rows:
        """(6-4), of exit nodes: all others end before one of them."""
        rows = Rows()
        for name in self.problem.graph.exit_nodes:
            terms, constant = self._seconds(name, "forward_s", 1.0)
            rows.add([("start_fp", self.index[name], 1.0), ("makespan", 0, -1.0), *terms], -constant)
        return rows

    def _edge_rows(self) -> Rows:
        """(6-6), (6-7)."""
        rows = Rows()
        for (u, v), nbytes in self.nbytes.items():
            terms, constant = self._seconds(u, "forward_s", 1.0)
            order = [("start_fp", self.index[u], 1.0), ("start_fp", self.index[v], -1.0)]
            rows.add([*order, *terms, *self._commu(u, v, nbytes)], -constant)
        return rows


@dataclass(frozen=True)
class Pesto(Partitioner):
    """The placement of co-placed groups with the shortest critical path of the forward pass.

    The thesis says of its baseline only that the indicator variables are as in NetSplit. What (6-2)..(6-7)
    leave open is therefore as there too: groups by co-placement (Algorithm 3, with twice the devices as
    the least number, doubled where groups cannot be packed), and memory by (5-18).

    The report's objective is the forward makespan in seconds; status, bound and gap are with respect to
    the groups. Status "limit": the engine found nothing in its time, and the answer is the fill of the
    devices in topological order.
    """

    time_limit_s: float = 60.0
    gap: float = 1e-4  # relative distance of objective and bound at which the search may stop
    engine: EngineName = "auto"
    groups: int | None = None  # least number of groups; None: 2 x devices (Algorithm 3, line 6)

    name = "pesto"
    optimises = "forward makespan of one micro-batch, nodes of one device may overlap"

    def __post_init__(self) -> None:
        if not self.time_limit_s > 0:
            raise ConfigError(f"pesto.time_limit_s is {self.time_limit_s}: give more than 0 seconds.")
        if not 0 <= self.gap < 1:
            raise ConfigError(f"pesto.gap is {self.gap}: give a fraction from 0 to below 1, as 0.0001.")
        if self.groups is not None and self.groups < 1:
            raise ConfigError(f"pesto.groups is {self.groups}: give 1 or more, or null for 2 x devices.")
        check_engine(self.engine)

    def choose(self, problem: Problem) -> Choice:
        limit_s = self.time_limit_s if problem.time_limit_s is None else problem.time_limit_s
        deadline = time.perf_counter() + limit_s
        atoms = len(atoms_of(problem.graph))
        least = self.groups or 2 * len(problem.cluster.devices)
        while True:
            groups = coplace(problem, least)
            outcome, device_of = self._place(problem, groups, deadline)
            if outcome.status != "infeasible" or len(groups) >= atoms:
                break
            least = 2 * len(groups)
        if device_of is None and outcome.status == "limit":
            device_of = fill_in_order(problem, [d.capacity_bytes for d in problem.cluster.devices])
        if device_of is None:
            raise infeasible(problem, self.name)
        return Choice(
            device_of,
            thesis_times(problem, device_of).start_fp,
            status=outcome.status,
            engine=outcome.engine,
            objective_s=forward_makespan(problem, device_of),
            bound_s=outcome.bound,
            notes={"groups": len(groups), **outcome.notes},
        )

    def _place(
        self, problem: Problem, groups: tuple[tuple[str, ...], ...], deadline: float
    ) -> tuple[Outcome, dict[str, str] | None]:
        """The engine's answer, bound in seconds; solved again where tolerances exceeded a capacity."""
        margin: dict[str, int] = {}
        while True:
            formulation = PestoFormulation(problem, groups, margin)
            left_s = deadline - time.perf_counter()
            outcome = solve(
                formulation.build(), engine=self.engine, time_limit_s=left_s, gap=self.gap, seed=problem.seed
            )
            if outcome.values is None:
                return outcome, None
            device_of = formulation.decode(
                outcome.vector("place", len(groups) * len(problem.cluster.devices))
            )
            used = static_bytes(problem.graph, device_of, problem.costs.alpha, problem.copies)
            over = {d.name: used.get(d.name, 0) - d.capacity_bytes for d in problem.cluster.devices}
            if max(over.values()) <= 0:
                assert outcome.bound is not None
                return replace(outcome, bound=outcome.bound * formulation.unit_s), device_of
            for name, nbytes in over.items():
                margin[name] = margin.get(name, 0) + max(0, nbytes)


def forward_makespan(problem: Problem, device_of: Mapping[str, str]) -> float:
    """The least solution of (6-2)..(6-7) for one placement, in seconds."""
    start = thesis_times(problem, device_of).start_fp
    kinds = {device.name: device.kind for device in problem.cluster.devices}
    return max(
        (start[v] + problem.costs.forward_s(v, kinds[device_of[v]]) for v in problem.graph.nodes), default=0.0
    )
