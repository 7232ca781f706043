"""How long it will take to simulate a plan, by those that were: what would end too late is not begun."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from netsplit.partition.base import Problem
from netsplit.placement.placement import Placement
from netsplit.program.schedules import Schedule, Searched

__all__ = ["SimulationPace"]

LATEST = 6  # of which the slowest says how fast it goes
QUICK, ORDERS = 3.0, 10.0  # times as long, where a schedule goes by durations and tries a few orders, or many
SLOWER = 1.3  # times what is expected, at most


@dataclass
class SimulationPace:
    """Seconds for each instruction of a program, about; until `deadline` on ``time.perf_counter``."""

    deadline: float = float("inf")
    rates: dict[float, deque[float]] = field(default_factory=dict)  # by `_effort`

    @contextmanager
    def learning(self, problem: Problem, schedule: Schedule, placement: Placement) -> Iterator[None]:
        """From what is simulated within."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        known = self.rates.setdefault(_effort(schedule), deque(maxlen=LATEST))
        known.append(seconds / _instructions(problem, schedule, placement))

    def expected_s(self, problem: Problem, schedule: Schedule, placement: Placement) -> float:
        """Of one simulation; 0 where none is known."""
        own = _effort(schedule)
        known = min(self.rates, key=lambda effort: abs(math.log(effort / own)), default=own)
        rate = max(self.rates.get(known, ()), default=0.0) * own / known
        return rate * _instructions(problem, schedule, placement)

    def affords(self, problem: Problem, schedule: Schedule, placement: Placement) -> bool:
        """Whether it will have ended by the deadline."""
        left_s = self.deadline - time.perf_counter()
        return left_s > SLOWER * self.expected_s(problem, schedule, placement)


def _effort(schedule: Schedule) -> float:
    """About how many times as long as under a schedule that has one order."""
    if isinstance(schedule, Searched) and not schedule.moves:
        return QUICK
    return ORDERS if schedule.timed else 1.0


def _instructions(problem: Problem, schedule: Schedule, placement: Placement) -> int:
    """About as many as the program has, and the nodes that it is compiled from: two computations and six
    ends of transfers and sums for each copy of a variable, each micro-batch."""
    where = placement.device_of
    copies = 0
    for variable in problem.graph.variables.values():
        if variable.producer is not None:
            homes = {where[v] for v in variable.consumers}
            homes.discard(where[variable.producer])
            copies += len(homes)
    return len(where) + schedule.microbatches * (2 + 6 * copies)
