"""How far a case's throughputs agree with those that others published of the same methods.

A fraction of figures met says little where one constant for all methods would meet as many, so the order of
the methods and the spread between them stand beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isnan

from netsplit.tables import Column, Table

__all__ = ["NEAR", "Agreement", "agreement_table", "best_constant", "kendall_tau"]

NEAR = 0.2
"""Relative difference within which a figure counts as met."""

COLUMNS = (
    Column("agreement", text=True),
    Column("figures", "d"),
    Column(f"within {100 * NEAR:.0f} %", "d"),
    Column("Kendall's tau", "+.2f"),
    Column("spread (%)", ".1f", 100.0),
    Column("published spread (%)", ".1f", 100.0),
    Column("best constant", ".1f"),
    Column(f"constant within {100 * NEAR:.0f} %", "d"),
)


@dataclass(frozen=True)
class Agreement:
    """Of two methods or more. Throughputs in samples per second, spreads as greatest / least - 1.

    Args:
        tau: rank correlation of the methods, 1 for the same order and -1 for the opposite; None where one
            side has no order.
        constant: the one throughput for all methods that meets the most published figures.
    """

    figures: int
    within: int
    tau: float | None
    spread: float
    published_spread: float
    constant: float
    constant_within: int

    @classmethod
    def of(cls, ours: Mapping[str, float], published: Mapping[str, float]) -> Agreement | None:
        """Of the methods that both have; None where these are fewer than two."""
        methods = [method for method in ours if method in published]
        if len(methods) < 2:
            return None
        our, their = [ours[method] for method in methods], [published[method] for method in methods]
        constant = best_constant(their)
        return cls(
            len(methods),
            _met(our, their),
            kendall_tau(our, their),
            max(our) / min(our) - 1,
            max(their) / min(their) - 1,
            constant,
            _met([constant] * len(their), their),
        )


def agreement_table(cases: Mapping[str, Agreement]) -> Table:
    """A line for each case."""
    rows = [
        (
            name, each.figures, each.within, each.tau, each.spread, each.published_spread, each.constant,
            each.constant_within,
        )
        for name, each in cases.items()
    ]  # fmt: skip
    return Table(COLUMNS, rows)


def kendall_tau(ours: Iterable[float], theirs: Iterable[float]) -> float | None:
    """Kendall's tau-b; figures that are equal when rounded to 0.01 are ties. None where all of a side are.

    Source: M. G. Kendall, The treatment of ties in ranking problems, Biometrika 33, 1945.
    """
    from scipy.stats import kendalltau

    sides = [[round(100 * each) for each in side] for side in (ours, theirs)]
    tau = float(kendalltau(*sides).statistic)
    return None if isnan(tau) else tau


def best_constant(figures: Iterable[float]) -> float:
    """Within `NEAR` of the most figures above 0; of several such values the one nearest to the farthest."""
    ordered = sorted(figures)
    runs = [(high, low) for i, low in enumerate(ordered) for high in ordered[i:]]
    values = [2 * high * low / (high + low) for high, low in runs]  # as far from one as from the other

    def merit(value: float) -> tuple[int, float]:
        return _met([value] * len(ordered), ordered), -max(abs(value / each - 1) for each in ordered)

    return max(values, key=merit)


def _met(ours: Iterable[float], theirs: Iterable[float]) -> int:
    return sum(abs(a / b - 1) <= NEAR for a, b in zip(ours, theirs, strict=True))
