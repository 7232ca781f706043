"""What the controller notices while it waits for workers: silence, standstill, slowness."""

from __future__ import annotations

import statistics
import time
from collections import deque

from netsplit.runtime.workers.heartbeat import Heartbeat

__all__ = ["Pace", "Watchdog"]

_QUIET_S = 2.0  # several signs of life missed
_MARGIN_S = 2.0  # for whoever waits at the same place to say so first


class Watchdog:
    """Notices workers that show no sign of life, and a program in which nothing moves any more.

    Args:
        limit_s: longest silence, and longest standstill beyond a margin.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.began = time.monotonic()
        self.alive: dict[int, float] = {}
        self.places: dict[int, Heartbeat] = {}  # as the last signs of life told them
        self.seen: dict[int, Heartbeat | None] = {}
        self.since = self.began

    def lives(self, rank: int, place: Heartbeat | None) -> None:
        self.alive[rank] = time.monotonic()
        if place is not None:
            self.places[rank] = place

    def silent(self, ranks: list[int]) -> list[int]:
        """Those of `ranks` whose process is stopped, or whose machine is gone."""
        return self._silent_for(ranks, self.limit_s)

    def quiet(self, ranks: list[int]) -> list[int]:
        """Those who are probably so, once it is known that something is wrong."""
        return self._silent_for(ranks, min(_QUIET_S, self.limit_s))

    def stands_still(self, places: dict[int, Heartbeat | None]) -> bool:
        """Whether inside a program no worker has begun an instruction for longer than a peer would wait."""
        if places != self.seen:
            self.seen = places
            self.since = time.monotonic()
        # Outside a program (measuring, loading) no heartbeat moves, however long it takes.
        if all(place is None or place.index < 0 for place in places.values()):
            return False
        return time.monotonic() - self.since > self.limit_s + _MARGIN_S

    def _silent_for(self, ranks: list[int], seconds: float) -> list[int]:
        now = time.monotonic()
        return [rank for rank in ranks if now - self.alive.get(rank, self.began) > seconds]


class Pace:
    """How long calls usually take, and whether one takes far longer; says so seldom."""

    def __init__(self, factor: float = 3.0, least_s: float = 1.0, again_s: float = 30.0) -> None:
        self.factor = factor
        self.least_s = least_s
        self.again_s = again_s
        self._seconds: dict[str, deque[float]] = {}
        self._said = -again_s

    def took(self, call: str, seconds: float) -> None:
        self._seconds.setdefault(call, deque(maxlen=20)).append(seconds)

    def late(self, call: str, began: float) -> float | None:
        """The usual seconds of a call that has taken several times as long by now; None: nothing to say."""
        past = self._seconds.get(call, ())
        now = time.monotonic()
        if len(past) < 3 or now - self._said < self.again_s:
            return None
        usual_s = statistics.median(past)
        if now - began < max(self.least_s, self.factor * usual_s):
            return None
        self._said = now
        return usual_s
