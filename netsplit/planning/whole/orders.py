"""Which schedules are tried for placements that were met, and for which of these."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from netsplit.errors import NetSplitError
from netsplit.placement.placement import Placement
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.judge import KINDS, Judge, Met, Tried, identity
from netsplit.program.schedules import Schedule, Searched

__all__ = ["BEYOND", "CLOSE", "Orders"]

FEW_ORDERS = 3  # schedules that all placements are tried under
FEW = 10  # placements of all that were tried, whose other schedules are looked at
FAR = 3.0  # times the best: what takes that long under the schedules that it was tried under comes last
BEYOND = 1.05  # times the best: what takes that long in an order without moves comes last, too
CLOSE = 0.001  # relative: so little is not worth trying for


@dataclass(frozen=True)
class Orders:
    """Tries schedules for what the judge has met, until a time on ``time.perf_counter``.

    Args:
        everywhere: also for replicas of everything, whose instructions are in one order under all.
    """

    open: AutoSchedule
    judge: Judge
    everywhere: bool

    def quick(self, microbatches: int) -> Schedule | None:
        """The order that is searched for without moves, where one may be: named schedules are up to twice as
        far from the best order of a placement as those of another are, and say little of which is better."""
        timed = (each for each in self.open.orders(microbatches) if isinstance(each, Searched))
        return next((replace(each, moves=False) for each in timed), None) if microbatches > 1 else None

    def first(self, origin: str, usual: Schedule, placement: Placement) -> Tried | None:
        """Simulated under the order that is searched for quickly; where there is none, or that does not fit,
        under the usual one."""
        quick = self.quick(usual.microbatches)
        if quick is None or len(set(placement.device_of.values())) == 1:
            return self.judge.judge(origin, usual, placement)
        tried = self.judge.judge(origin, quick, placement)
        if tried is None or tried.fits:
            return tried
        other = self.judge.judge(origin, usual, placement)
        return tried if other is None else min(tried, other, key=lambda each: each.rank)

    def named(self, until: float) -> None:
        """All but searched ones for the best of every kind; the best of these for all placements that had no
        order of their own, as what those were tried under may not suit them; then all for the best."""
        kinds = [tried for kind in KINDS if (tried := self.judge.best.get(kind)) is not None]
        self._for_each(kinds, until)
        names = self.best()
        for met in self._several():
            for schedule in (
                self.open.orders(met.microbatches) if self.quick(met.microbatches) is None else ()
            ):
                if time.perf_counter() > until:
                    return
                if schedule.name in names and met.least_s <= self.judge.best_s:
                    self.judge.judge(met.origin, schedule, met.placement)
        self._for_each(self.leaders(), until)

    def searched(self, until: float, everything: bool = False) -> None:
        """An order for the seconds at hand: of the best plans, in turn with those that may take least."""
        leaders = [self.judge.met_as(tried) for tried in self._but_replicas(self.leaders())]
        turns = zip_longest(leaders, self._several(float("inf") if everything else FAR))
        several = (met for met in chain.from_iterable(turns) if met is not None)
        self._for_all((met for met in several if everything or self._near(met)), True, until)

    def _near(self, met: Met) -> bool:
        return self.quick(met.microbatches) is None or met.fastest_s <= BEYOND * self.judge.best_s

    def every(self, until: float) -> None:
        """Every schedule for every placement that may be better by one."""
        self.searched(until, everything=True)
        self._for_all(self._several(float("inf")), False, until)

    def plain(self, origin: str, first: Schedule, placement: Placement, however_late: bool = False) -> None:
        """A placement under the schedule it was made for, and the quickly searched order; where there is
        none, all that may have it.

        Args:
            first: the one it was made for; `however_late`: which is tried at any time.
        """
        quick = self.quick(first.microbatches)
        others = self.open.orders(first.microbatches) if quick is None else [quick]
        for schedule in dict.fromkeys((first, *others)):
            if not schedule.timed or schedule == quick:
                with suppress(NetSplitError):  # of schedules that have no copies
                    self.judge.judge(origin, schedule, placement, however_late and schedule == first)

    def best(self) -> list[str]:
        """The few schedules whose best plans are the fastest; none that is searched for."""
        ranked = sorted(self.judge.tried, key=lambda tried: tried.rank)
        names = (tried.schedule.name for tried in ranked if not tried.schedule.timed)
        return list(dict.fromkeys(names))[:FEW_ORDERS]

    def leaders(self) -> list[Tried]:
        """The best few placements, each once, in turn with the best of every kind."""
        ranked = sorted(self.judge.tried, key=lambda tried: tried.rank)
        kinds = [self.judge.best[kind] for kind in KINDS if kind in self.judge.best]
        leaders: dict[tuple[object, ...], Tried] = {}
        for tried in [*ranked[:1], *kinds, *ranked]:
            if len(tried.devices) > 1 or tried.schedule.microbatches == 1:
                leaders.setdefault(identity(tried.placement), tried)
            if len(leaders) >= FEW + len(kinds):
                break
        return list(leaders.values())

    def _but_replicas(self, several: Sequence[Tried]) -> list[Tried]:
        return [tried for tried in several if self.everywhere or tried.kind != "data parallel"]

    def _for_each(self, several: Sequence[Tried], until: float) -> None:
        for tried in self._but_replicas(several):
            for schedule in self._of(tried.schedule.microbatches, False):
                if time.perf_counter() > until:
                    return
                self.judge.judge(tried.origin, schedule, tried.placement)

    def _for_all(self, several: Iterable[Met], timed: bool, until: float) -> None:
        for met in several:
            for schedule in self._of(met.microbatches, timed):
                if time.perf_counter() > until:
                    return
                if met.least_s < self.judge.best_s * (1 - CLOSE):
                    self.judge.judge(met.origin, schedule, met.placement)

    def _of(self, microbatches: int, timed: bool) -> Iterable[Schedule]:
        return [each for each in self.open.orders(microbatches) if each.timed == timed]

    def _several(self, far: float = FAR) -> list[Met]:
        """Placements of several stages of whole operators, those first that may take the least."""
        near = [met for met in self.judge.met.values() if met.fastest_s <= far * self.judge.best_s]
        whole = [met for met in near if not met.placement.rewrites]
        several = [met for met in whole if len(set(met.placement.device_of.values())) > 1]
        return sorted(several, key=lambda met: met.least_s)
