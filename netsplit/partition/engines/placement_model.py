"""CP-SAT models in which every group of nodes has one device, within the capacities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from netsplit.interrupts import cp_sat_solver, interruptible
from netsplit.partition.common.instance import Ints

__all__ = ["PlacementModel", "Solved"]


@dataclass(frozen=True, eq=False)
class Solved:
    """What CP-SAT came to. `bound`: no answer has a lower objective."""

    solver: Any
    where: Ints | None  # [G] devices; None without an answer
    bound: float
    optimal: bool
    infeasible: bool


class PlacementModel:
    """Variables `place[g][d]`: group g is on device d. Subclasses add what is minimised.

    Args:
        own, shared: bytes as `Instance.bytes_of_groups` gives them.
        capacity: [D] bytes.
        alike: sets of devices that may swap names: the next of a set has only groups after the first of the
            one before.
    """

    def __init__(
        self,
        own: Sequence[int],
        shared: Mapping[tuple[int, ...], int],
        capacity: Ints,
        alike: Iterable[Sequence[int]] = (),
    ) -> None:
        from ortools.sat.python import cp_model

        self.model: Any = cp_model.CpModel()
        self.devices, self.alike = range(len(capacity)), [list(each) for each in alike]
        self.place = [[self.literal() for _ in self.devices] for _ in own]
        for row in self.place:
            self.model.add_exactly_one(row)
        for d in self.devices:
            terms = [self.place[g][d] * nbytes for g, nbytes in enumerate(own) if nbytes]
            for groups, nbytes in shared.items():
                held = self.literal()
                for g in groups:
                    self.model.add_implication(self.place[g][d], held)
                terms.append(held * nbytes)
            self.model.add(sum(terms) <= int(capacity[d]))
        for p, q in (pair for each in self.alike for pair in pairwise(each)):
            for g, row in enumerate(self.place):
                self.model.add_bool_or([~row[q], *(self.place[b][p] for b in range(g))])

    def literal(self) -> Any:
        return self.model.new_bool_var("")

    def hint_places(self, where: Sequence[int]) -> None:
        """[G] devices to begin with; those that may swap names are named by their first groups."""
        first = {p: where.index(p) if p in where else len(where) for p in self.devices}
        name = list(self.devices)
        for each in self.alike:
            for to, p in zip(each, sorted(each, key=first.__getitem__), strict=True):
                name[p] = to
        for row, p in zip(self.place, where, strict=True):
            for d, x in enumerate(row):
                self.model.add_hint(x, d == name[p])

    def solve(self, time_limit_s: float, seed: int, workers: int = 2, gap: float = 0.0) -> Solved:
        """Solve by so many searches that take turns: the answer does not depend on the machine's load."""
        from ortools.sat.python import cp_model

        solver = cp_sat_solver(max(0.01, time_limit_s), seed, workers)
        solver.parameters.interleave_search = workers > 1
        solver.parameters.relative_gap_limit = gap
        status = interruptible(lambda: solver.solve(self.model), solver.stop_search)
        bound, optimal = solver.best_objective_bound, status == cp_model.OPTIMAL
        if not optimal and status != cp_model.FEASIBLE:
            return Solved(solver, None, bound, False, status == cp_model.INFEASIBLE)
        places = [[solver.boolean_value(x) for x in row] for row in self.place]
        where = np.array(places, bool).reshape(len(places), len(self.devices)).argmax(axis=1)
        return Solved(solver, where.astype(np.int64), bound, optimal, False)
