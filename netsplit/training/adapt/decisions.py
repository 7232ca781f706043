"""What was decided about plans while a training went on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from netsplit.planning.plan_diff import PlacementChange

__all__ = ["CHANGED", "Decision", "Outcome"]

Outcome = Literal["stayed", "on trial", "kept", "rolled back"]
CHANGED: tuple[Outcome, ...] = ("on trial", "kept")
"""Outcomes with which training goes on by the other plan."""


@dataclass(frozen=True)
class Decision:
    """One look for a plan with a shorter iteration, and what came of it.

    `measured_before_s` and `measured_after_s` are medians of a window's iterations; `predicted_*` are of the
    plan that was there and of the one that was found, by the same costs of the workers.
    """

    iteration: int  # trained before it, since the beginning of the whole training
    why: str  # what was seen, and why nothing was changed where nothing was
    outcome: Outcome
    predicted_before_s: float
    predicted_after_s: float | None = None
    measured_before_s: float = 0.0
    measured_after_s: float | None = None
    method: str = ""  # that found the other plan
    search_s: float = 0.0  # that looking for it took
    switch_s: float = 0.0  # that the changes took, the way back counted
    nbytes: int = 0  # that moved between workers
    change: PlacementChange | None = None  # from the plan that was there to the other; None where it stayed

    @property
    def changed(self) -> bool:
        """Training went on by the other plan."""
        return self.outcome in CHANGED

    def __str__(self) -> str:
        searched = f"searched for {1e3 * self.search_s:.0f} ms"
        if self.predicted_after_s is None or self.outcome == "stayed":
            took = f"{1e3 * self.measured_before_s:.4g} ms an iteration"
            return f"iteration {self.iteration}: stayed, {took}, {searched}: {self.why}"
        old = f"{1e3 * self.measured_before_s:.4g} ms ({1e3 * self.predicted_before_s:.4g} predicted)"
        predicted = f"{1e3 * self.predicted_after_s:.4g}"
        new = (
            f"{predicted} ms predicted"
            if self.measured_after_s is None
            else f"{1e3 * self.measured_after_s:.4g} ms ({predicted} predicted)"
        )
        changed = "" if self.change is None else f"; changed: {'; '.join(self.change.lines)}"
        return (
            f"iteration {self.iteration}: {self.outcome}, a plan by {self.method}: an iteration took {old} "
            f"by the old plan, and {new} by the new one; {searched}, changed in "
            f"{1e3 * self.switch_s:.0f} ms: {self.why}{changed}"
        )
