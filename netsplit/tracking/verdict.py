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
        rate: samples per second; None: there is none, as it does not fit.
        spread: the rates of most of its iterations (`History.spread`); None: it is predicted.
        over: the devices whose limit it exceeds.
    """

    name: str
    rate: float | None
    spread: tuple[float, float] | None = None
    over: Sequence[str] = ()

    @property
    def label(self) -> str:
        """At the beginning of a sentence."""
        return f"One device ({ONE_DEVICE})" if self.name == ONE_DEVICE else self.name

    @property
    def figure(self) -> str:
        return f"{self.rate:,.1f}"

    @property
    def beside(self) -> str:
        """``m_topo (226.4)``, ``one device (single, 171.9)``."""
        figure = f"{self.figure}, which {_exceeds(self)}" if self.over else self.figure
        return f"one device ({self.name}, {figure})" if self.name == ONE_DEVICE else f"{self.name} ({figure})"


def verdict_of(rows: Sequence[ComparisonRow]) -> str:
    """Of the methods that did not fail: by what was measured, else by what is predicted. "" of none."""
    done = [row for row in rows if not row.failed and row.throughput is not None]
    measured = any(row.measured_s is not None for row in done)
    said = verdict(list(map(_contender, done)), measured)
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
    ranked = sorted((each for each in contenders if each.rate is not None), key=lambda each: -_rate(each))
    fits = [each for each in ranked if not each.over]
    if not fits:
        return " ".join(f"{each.label} {_exceeds(each)}: {each.figure} samples/s {how}." for each in ranked)
    best, *others = fits
    if len(contenders) == 1:
        return f"{best.label}: {best.figure} samples/s {how}."
    level = [each for each in others if _level(best, each)]
    others = [each for each in others if each not in level]
    one = [each for each in ranked if each.name == ONE_DEVICE and each not in (best, *level, *others[:1])]
    slower = [each for each in (*others[:1], *one) if _rate(each) < _rate(best)]
    first = _tied(best, level, how) if level else _alone(best, measured)
    sentences = [", ".join(filter(None, [first, " and ".join(_more(best, each) for each in slower)])) + "."]
    for each in ranked:
        if each.over and _rate(each) >= _rate(best):
            much = "as fast" if _level(each, best) else "faster"
            sentences.append(f"{each.label} is {much} ({each.figure}), but {_exceeds(each)}.")
    if any(each.name == ONE_DEVICE and each.rate is None for each in contenders):
        sentences.append("One device does not fit.")
    return " ".join(sentences)


def _alone(best: Contender, measured: bool) -> str:
    if measured:
        return f"{best.label} is the fastest: {best.figure} samples/s measured"
    return f"{best.label} is predicted to be the fastest: {best.figure} samples/s"


def _tied(best: Contender, level: Sequence[Contender], how: str) -> str:
    tied = [best, *level]
    names = listed([best.label, *(each.label.replace("One", "one") for each in level)])
    varied = all(_varies(best, each) for each in level)
    why = " (their iterations vary by more than that)" if varied else ""
    return f"{names} are level: {listed([each.figure for each in tied])} samples/s {how}{why}"


def _contender(row: ComparisonRow) -> Contender:
    return Contender(row.method, row.throughput, row.spread, row.overfull)


def _rate(contender: Contender) -> float:
    return contender.rate or 0.0


def _level(best: Contender, other: Contender) -> bool:
    near = LEVEL_PREDICTED if best.spread is None else LEVEL
    return _varies(best, other) or _rate(other) >= (1 - near) * _rate(best)


def _varies(best: Contender, other: Contender) -> bool:
    """Whether most iterations of the one have a range with the other's middle one in it."""
    if best.spread is None or other.spread is None:
        return False
    return _rate(other) >= best.spread[0] or _rate(best) <= other.spread[1]


def _more(best: Contender, other: Contender) -> str:
    ratio = _rate(best) / _rate(other)
    percent = f"{100 * (ratio - 1):.{1 if ratio < 1.1 else 0}f} % more than"
    return f"{percent if ratio < 2 else f'{ratio:.1f} times as many as'} {other.beside}"


def _exceeds(contender: Contender) -> str:
    return f"exceeds the limit of {listed(contender.over)}"
