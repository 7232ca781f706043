"""When each part of a search for a whole plan ends, and what measuring within it adds to its time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from netsplit.planning.whole.judge import Judge

__all__ = ["SearchTime"]


@dataclass
class SearchTime:
    """From `started` to `deadline` on ``time.perf_counter``; there is as much again until something fits."""

    judge: Judge
    started: float
    deadline: float
    metered_s: float = 0.0  # that measuring parts took, on top

    @property
    def all_s(self) -> float:
        return self.deadline - self.started

    @property
    def left_s(self) -> float:
        return self.deadline - time.perf_counter()

    @property
    def last(self) -> float:
        """The deadline, or as much again where nothing fits yet."""
        return self.deadline + (0.0 if self.judge.winner is not None else self.all_s)

    def until(self, part: float) -> float:
        """When that part of the time is over."""
        return self.started + part * self.all_s

    def over(self, until: float) -> bool:
        """Whether it is later; where nothing fits yet, there is as much again as for everything."""
        return time.perf_counter() > until + self.last - self.deadline

    def again(self, least_s: float) -> None:
        """As much once more, from now, at least so many seconds."""
        now = time.perf_counter()
        self.started, self.deadline = now, now + max(self.all_s, least_s)

    @contextmanager
    def shortened(self, part: float) -> Iterator[None]:
        """Within, the deadline is when that part of the time is over."""
        whole_s = self.all_s
        self.deadline = self.until(part)
        yield
        self.deadline = self.started + whole_s

    @contextmanager
    def metered(self, microbatches: int) -> Iterator[None]:
        """What measuring parts of so many micro-batches takes within is not of the search's time."""
        before_s = self.judge.problem_of(microbatches).metered_s()
        yield
        late_s = self.judge.problem_of(microbatches).metered_s() - before_s
        self.metered_s += late_s
        self.started += late_s
        self.deadline += late_s
        self.judge.pace.deadline += late_s
