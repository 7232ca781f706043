"""Which method won, and by how much: the last words of a comparison and of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from netsplit.planning.explanation.notation import listed
from netsplit.tracking.table import ComparisonRow

__all__ = ["ONE_DEVICE", "Contender", "verdict", "verdict_of", "winner_of"]

ONE_DEVICE = "single"
"""The method, and the kind of plan, that all else is compared with."""
LEVEL, LEVEL_PREDICTED = 0.02, 0.001
"""Relative: methods that are no further apart are level, whatever their iterations vary."""


@dataclass(frozen=True)
class Contender:
    """A method, or a kind of plan.

    Args:
        rate: samples per second; 0: there is none, as it does not fit.
        spread: the rates of most of its iterations (`History.spread`); None: it is predicted.
        over: the devices whose limit it exceeds.
    """

    name: str
    rate: float
    spread: tuple[float, float] | None = None
    over: Sequence[str] = ()

    @property
    def label(self) -> str:
        """The label at the beginning of a sentence."""
        return f"One device ({ONE_DEVICE})" if self.name == ONE_DEVICE else self.name

    @property
    def figure(self) -> str:
        return f"{self.rate:,.1f}"

    @property
    def exceeds(self) -> str:
        return f"exceeds the limit of {listed(self.over)}"

    def varies_as(self, other: Contender) -> bool:
        """Whether most iterations of the one have a range with the other's middle one in it."""
        if self.spread is None or other.spread is None:
            return False
        return other.rate >= self.spread[0] or self.rate <= other.spread[1]

    def is_level(self, other: Contender) -> bool:
        near = LEVEL_PREDICTED if self.spread is None else LEVEL
        return self.varies_as(other) or other.rate >= (1 - near) * self.rate

    def ahead_of(self, other: Contender) -> str:
        """``25 % more than m_topo (226.4)``, ``65 % more than one device (single, 171.9)``."""
        ratio = self.rate / other.rate
        percent = f"{100 * (ratio - 1):.{1 if ratio < 1.1 else 0}f} % more than"
        figure = other.figure + (f", which {other.exceeds}" if other.over else "")
        whom = f"one device ({other.name}, " if other.name == ONE_DEVICE else f"{other.name} ("
        return f"{percent if ratio < 2 else f'{ratio:.1f} times as many as'} {whom}{figure})"


def verdict_of(rows: Sequence[ComparisonRow]) -> str:
    """The verdict on the methods that did not fail, by what was measured, else predicted; "" of none."""
    done = [row for row in rows if not row.failed and row.throughput]
    measured = any(row.measured_s is not None for row in done)
    said = verdict([Contender(r.method, r.throughput or 0, r.spread, r.overfull) for r in done], measured)
    if len(done) == 1 and measured and done[0].prediction_error is not None:
        (row,) = done
        rate = (row.throughput or 0.0) * (row.measured_s or 0.0) / (row.predicted_s or 1.0)
        said = f"{said[:-1]} ({rate:,.1f} predicted)."
    if any(row.earlier for row in done):
        said += " An earlier run measured it." if len(done) == 1 else " Earlier runs measured those marked †."
    failed = [row.method for row in rows if row.failed]
    return " ".join(filter(None, [said, f"Failed: {', '.join(failed)}." if failed else ""]))


def winner_of(rows: Sequence[ComparisonRow]) -> str | None:
    """The fastest method that stays within all limits; None where none does."""
    fits = [row for row in rows if not row.failed and row.throughput is not None and not row.overfull]
    return max(fits, key=lambda row: row.throughput or 0.0).method if fits else None


def verdict(contenders: Sequence[Contender], measured: bool) -> str:
    """A sentence or two; "" where there is nothing to compare.

    What exceeds a limit does not win, but is named where it is faster. Who is level with the fastest, as
    iterations of either vary by more than that, shares the first place.
    """
    how = "measured" if measured else "predicted"
    ranked = sorted((each for each in contenders if each.rate), key=lambda each: -each.rate)
    fits = [each for each in ranked if not each.over]
    if not fits:
        return " ".join(f"{each.label} {each.exceeds}: {each.figure} samples/s {how}." for each in ranked)
    best = fits[0]
    if len(contenders) == 1:
        return f"{best.label}: {best.figure} samples/s {how}."
    first = [each for each in fits if each is best or best.is_level(each)]
    second = [each for each in fits if each not in first][:1]
    one = [each for each in ranked if each.name == ONE_DEVICE and each not in (*first, *second)]
    if len(first) > 1:
        names = listed([best.label, *(each.label.replace("One", "one") for each in first[1:])])
        why = " (their iterations vary by more than that)" * all(map(best.varies_as, first[1:]))
        said = f"{names} are level: {listed([each.figure for each in first])} samples/s {how}{why}"
    elif measured:
        said = f"{best.label} is the fastest: {best.figure} samples/s measured"
    else:
        said = f"{best.label} is predicted to be the fastest: {best.figure} samples/s"
    slower = " and ".join(best.ahead_of(each) for each in (*second, *one) if each.rate < best.rate)
    sentences = [f"{said}, {slower}." if slower else f"{said}."]
    for each in ranked:
        if each.over and each.rate >= best.rate:
            much = "as fast" if each.is_level(best) else "faster"
            sentences.append(f"{each.label} is {much} ({each.figure}), but {each.exceeds}.")
    if any(each.name == ONE_DEVICE and not each.rate for each in contenders):
        sentences.append("One device does not fit.")
    return " ".join(sentences)
