"""What ``schedule=auto`` may choose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeGuard

from netsplit.errors import ConfigError
from netsplit.placement.exchange import ExchangeName
from netsplit.placement.placement import ShardName
from netsplit.program.schedules import SCHEDULES, ZBV, OneFOneB, Schedule, Searched, SingleBatch
from netsplit.program.schedules.base import check_choices
from netsplit.settings import check_switches
from netsplit.signature import suggest
from netsplit.tables import counted

__all__ = ["AutoSchedule", "microbatch_counts"]

MOST_COUNTS = 8  # of micro-batches to try, as each needs a capture
MOST_EQUAL = 512  # micro-batches, where only a few numbers divide the batch
SYNCHRONOUS = tuple(name for name, kind in SCHEDULES.items() if kind().update_every is None)
"""Schedules that train what one device would with the same micro-batches."""


@dataclass(frozen=True)
class AutoSchedule:
    """A schedule that is chosen with the placement (`planning.whole`).

    Args:
        microbatches: number of micro-batches, or a list to choose from; None: `microbatch_counts`.
        schedules: names to choose from; None: `SYNCHRONOUS`.
        replicas: whether stages may have several devices.
        recompute: whether activations that do not fit may be recomputed.
        splits: whether operators may be in parts; trying that takes 0.4 of the time.
        time_limit_s: for the whole decision.
        exchange: as in schedules.
        shard: as in schedules; "auto": slices where whole states do not fit.
        no_replicas: the reason if stages may have only one device.

    Raises:
        ConfigError: a value that cannot be used.
    """

    microbatches: int | Sequence[int] | None = None
    schedules: Sequence[str] | None = None
    replicas: bool = True
    recompute: bool = True
    splits: bool = False
    time_limit_s: float = 30.0
    exchange: ExchangeName = field(default="auto", kw_only=True)
    shard: ShardName | Literal["auto", "none"] = field(default="auto", kw_only=True)
    no_replicas: str = field(default="schedule.replicas is false", kw_only=True)
    name: ClassVar[str] = "auto"
    decides_everything: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        switches = ("replicas", "recompute", "splits")
        check_switches(**{f"schedule.{name}": getattr(self, name) for name in switches})
        check_choices(self.exchange, self.shard, "auto")
        limit_s, given, names = self.time_limit_s, self.microbatches, self.schedules
        number = isinstance(limit_s, int | float) and not isinstance(limit_s, bool)
        if not number or not 0 < limit_s < math.inf:
            raise ConfigError(
                f"schedule.time_limit_s is {limit_s!r}: give a finite number of seconds above 0."
            )
        listed = given if _is_list(given) else [1 if given is None else given]
        if not listed or any(isinstance(m, bool) or not isinstance(m, int) or m < 1 for m in listed):
            raise ConfigError(
                f"schedule.microbatches is {given!r}: give a whole number of at least 1, a list of them, or "
                "null (None in Python)."
            )
        if names is not None and (not _is_list(names) or not names):
            raise ConfigError(
                f"schedule.schedules is {names!r}: give a list of names, such as [1f1b, gpipe], or null "
                "(None in Python) for all."
            )
        for each in names or ():
            if not isinstance(each, str) or each not in SCHEDULES:
                raise ConfigError(
                    f"schedule.schedules has {each!r}, which is not a schedule: "
                    f"{suggest(str(each), SCHEDULES)}"
                )
        if self._whole and given is not None and 1 not in listed:
            raise _uncut(given)

    @property
    def _whole(self) -> bool:
        """Whether every open schedule keeps the batch whole."""
        return self.schedules is not None and set(self.schedules) == {SingleBatch.name}

    @property
    def _given(self) -> Sequence[int]:
        given = self.microbatches
        return [given] if isinstance(given, int) else given or ()

    def counts(self, batch_size: int, devices: int, equal: bool = False) -> tuple[int, ...]:
        """Numbers of micro-batches to try, ascending: the given ones that a batch can make.

        Args:
            equal: whether micro-batches must be equal, if no number is given.

        Raises:
            ConfigError: every given number exceeds the number of samples.
        """
        if self._whole:
            return (1,)
        if not self._given:
            return microbatch_counts(batch_size, devices, equal)
        if min(self._given) > batch_size:
            raise ConfigError(
                f"schedule.microbatches is {self.microbatches!r}, but a batch has {batch_size} samples: "
                f"give at most {batch_size}, or null (None in Python)."
            )
        return tuple(sorted({_made_of(batch_size, m) for m in self._given}))

    def not_as_given(self, batch_size: int, counts: Sequence[int], why: str = "") -> tuple[str, ...]:
        """A sentence for every given number of micro-batches that is changed or not tried.

        Args:
            counts: numbers that are tried.
            why: the reason for trying no others.
        """
        if self._whole:
            why = f"schedule.schedules has only '{SingleBatch.name}', which does not cut batches"
        remarks = []
        for m in sorted(set(self._given)):
            n = _made_of(batch_size, m)
            if n not in counts:
                remarks.append(
                    f"{'1 micro-batch is' if m == 1 else f'{m} micro-batches are'} not tried: {why}"
                )
            elif m != n:
                each = f"{-(-batch_size // n)} each{' (the last is smaller)' * bool(batch_size % n)}"
                samples = counted(batch_size, "sample")
                remarks.append(f"{m} micro-batches were requested, but {samples} make {n}, of {each}")
        return tuple(remarks)

    def further_counts(self, batch_size: int, known: Sequence[int]) -> tuple[int, ...]:
        """More micro-batches to try if nothing fits: powers of two up to one sample each; none if the user
        named numbers."""
        if self._whole or self.microbatches is not None:
            return ()
        most = min(batch_size, MOST_EQUAL)
        wanted = {2**k for k in range(most.bit_length())} | {most}
        more = sorted(m for m in wanted if m > max(known) and batch_size % m == 0)
        return tuple(more[-MOST_COUNTS:])

    def orders(self, microbatches: int) -> list[Schedule]:
        """The schedules to choose from, for that many micro-batches.

        Raises:
            ConfigError: no open schedule cuts batches.
        """
        if microbatches > 1 and self._whole:
            raise _uncut(microbatches)
        names = SYNCHRONOUS if self.schedules is None else tuple(self.schedules)
        if microbatches > 1:
            names = tuple(name for name in names if name != SingleBatch.name)
        elif self.schedules is None:
            names = (SingleBatch.name, "gpipe")
        shard = "none" if self.shard == "auto" else self.shard
        return [
            replace(SCHEDULES[name]().with_microbatches(microbatches), exchange=self.exchange, shard=shard)
            for name in names
        ]

    def usual(self, microbatches: int, folded: bool = False) -> Schedule:
        """The schedule that a placement is tried under first; `folded`: its stages lie in a V."""
        allowed = self.orders(microbatches)
        wanted = SingleBatch.name if microbatches == 1 else ZBV.name if folded else OneFOneB.name
        return next((each for each in allowed if each.name == wanted), allowed[0])

    def quick(self, microbatches: int) -> Schedule | None:
        """The searched schedule without moves, if open. It ranks placements better than named schedules,
        which are up to twice as far from one placement's best order as from another's."""
        searched = (each for each in self.orders(microbatches) if isinstance(each, Searched))
        return next((replace(each, quick=True) for each in searched), None) if microbatches > 1 else None


def _uncut(microbatches: object) -> ConfigError:
    return ConfigError(
        f"schedule.microbatches is {microbatches!r}, but schedule.schedules has only 'single_batch', which "
        "does not cut batches: name a schedule that does, or leave one of the two out."
    )


def _made_of(batch_size: int, wanted: int) -> int:
    """The nearest number of micro-batches that are equal but for a smaller last one."""
    return -(-batch_size // -(-batch_size // min(wanted, batch_size)))


def _is_list(given: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(given, Sequence) and not isinstance(given, str | bytes)


def microbatch_counts(batch_size: int, devices: int, equal: bool = False) -> tuple[int, ...]:
    """Powers of two and small multiples of the devices: as many parts as the batch divides into.

    Up to four for each device, and at least 16: beyond that, small operators lose more than a pipeline gains.

    Args:
        equal: only numbers that make equal micro-batches (of 30 samples 1, 2, 5, 10, 15).
    """
    most = min(batch_size, max(16, 4 * devices))
    wanted = {m for m in (1, 2, 4, 8, 16, 32, 64, devices, 2 * devices, 4 * devices) if m <= most}
    counts = sorted(m for m in wanted if _made_of(batch_size, m) == m)
    if equal:
        divisors = [m for m in range(1, min(batch_size, MOST_EQUAL) + 1) if batch_size % m == 0]
        counts = sorted({min(divisors, key=lambda d: max(d / m, m / d)) for m in wanted})
    while len(counts) > MOST_COUNTS:  # the ones nearest to another are missed least
        ratios = [counts[i + 1] / counts[i] for i in range(1, len(counts) - 1)]
        del counts[1 + ratios.index(min(ratios))]
    return tuple(counts)
