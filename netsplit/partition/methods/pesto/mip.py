"""A mixed-integer linear model with a known solution, from which an engine may begin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from netsplit.partition.engines.mixed_integer import solve
from netsplit.partition.engines.outcome import Outcome
from netsplit.partition.engines.rows import Rows, Term

__all__ = ["Mip"]


@dataclass
class Mip:
    """A mixed-integer linear model that grows by columns and rows."""

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    start: list[float] = field(default_factory=list)  # a feasible value of every column
    rows: Rows = field(default_factory=Rows)
    objective: int | None = None  # the column to minimise

    def column(self, start: float, upper: float = 1.0, lower: float = 0.0, integer: bool = False) -> int:
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        self.start.append(start)
        return len(self.lower) - 1

    def at_most(self, terms: Iterable[Term], limit: float, equal: bool = False) -> None:
        """``sum of terms <= limit``, or ``=``; terms of one column are added up."""
        summed: dict[int, float] = {}
        for column, value in terms:
            summed[column] = summed.get(column, 0.0) + value
        self.rows.add(summed.items(), limit, equal=equal)

    def solve(
        self, time_limit_s: float, gap: float, seed: int, *, engine: str = "highs", with_start: bool = True
    ) -> Outcome:
        """Raises ConfigError: `engine` cannot take the model."""
        cost = np.zeros(len(self.lower))
        if self.objective is not None:
            cost[self.objective] = 1.0
        model = self.rows.model(self.lower, self.upper, cost, self.integer)
        start = self.start if with_start else None
        return solve(model, engine=engine, time_limit_s=time_limit_s, gap=gap, seed=seed, start=start)
