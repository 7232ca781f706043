"""The time limit of methods that decide node by node and have no answer until all are placed."""

from __future__ import annotations

import time

from netsplit.errors import TimeLimitError
from netsplit.partition.base import Problem

__all__ = ["PlacingClock"]

_SHORTEST_S = 2.0  # below it a limit is for methods that search
_LOOKS = 64  # nodes between two looks at the time


class PlacingClock:
    """Counts nodes, and ends the method when its time is over."""

    def __init__(self, problem: Problem, method: str) -> None:
        self.method, self.nodes, self.placed = method, len(problem.graph), 0
        self.limit_s = problem.time_limit_s and max(problem.time_limit_s, _SHORTEST_S)
        self.began = time.perf_counter()

    def tick(self, nodes: int = 1) -> None:
        """Count so many nodes more.

        Raises:
            TimeLimitError: the time is over.
        """
        looks = self.placed // _LOOKS
        self.placed += nodes
        if self.limit_s is None or self.placed // _LOOKS == looks:
            return
        if time.perf_counter() > self.began + self.limit_s:
            raise TimeLimitError(
                f"{self.method} places node by node, and in {self.limit_s:g} s has come to {self.placed} of "
                f"{self.nodes}: give it more time, or take auto, which keeps to its own."
            )
