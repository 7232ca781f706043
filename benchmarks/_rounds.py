"""Measuring things in turn, and what their ratios say.

round 0:  a b c a'      every contender once a round, from another one on in every round; a' is a again
round 1:  b c a' a      ratios are made inside a round, so that a slow minute hits both sides;
…                       of the rounds' ratios the median counts, with the quartiles as spread
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

__all__ = ["Contender", "Ratio", "Rounds", "quartiles"]


def _nothing() -> None:
    return


@dataclass(frozen=True)
class Contender:
    """One thing to time: `run` is timed; `before` and `after` are not. `pids`: the processes that do it."""

    name: str
    run: Callable[[], object]
    before: Callable[[], object] = _nothing
    after: Callable[[], object] = _nothing
    pids: tuple[int, ...] = ()

    def processor_s(self) -> float:
        """Seconds that its processes have computed since they began; ticks of 10 ms."""
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self.pids)


@dataclass(frozen=True)
class Ratio:
    """Median and quartiles of a ratio over the rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass
class Rounds:
    """Seconds of every contender in every round, by the clock and of its processors."""

    contenders: list[Contender]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    processor_s: dict[str, list[float]] = field(default_factory=dict)

    def warm_up(self, times: int = 1) -> None:
        for each in self.contenders:
            each.before()
            for _ in range(times):
                each.run()

    def round(self) -> None:
        """Every contender once, beginning with another one each time."""
        done = len(self.seconds.get(self.contenders[0].name, []))
        turn = done % len(self.contenders)
        for each in self.contenders[turn:] + self.contenders[:turn]:
            each.before()
            busy, start = each.processor_s(), time.perf_counter()
            each.run()
            self.seconds.setdefault(each.name, []).append(time.perf_counter() - start)
            self.processor_s.setdefault(each.name, []).append(each.processor_s() - busy)
            each.after()

    def ratio(self, above: str | Sequence[float], below: str) -> Ratio:
        """The ratio of `above`, a contender's name or a number for each round, to the contender `below`."""
        numbers = self.seconds[above] if isinstance(above, str) else above
        return quartiles([a / b for a, b in zip(numbers, self.seconds[below], strict=True)])

    def work(self, above: str, below: str) -> float:
        """Ratio of processor seconds over all rounds: what others do on the machine hardly moves it."""
        return sum(self.processor_s[above]) / max(sum(self.processor_s[below]), 1e-9)

    def has(self, *names: str) -> bool:
        return all(name in self.seconds for name in names)


def quartiles(values: Sequence[float]) -> Ratio:
    """Median and quartiles; of one value, that value."""
    if len(values) == 1:
        return Ratio(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Ratio(median, low, high)
