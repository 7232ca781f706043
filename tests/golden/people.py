"""What comes of the cases of `tests/models_of_people`, in a few words: how each ends, and why."""

from __future__ import annotations

import re

from tests.models_of_people.harness import EQUAL, REFUSED, Outcome

__all__ = ["outcome_of"]

REASONS = {
    "trains otherwise": r"would not train as in plain PyTorch",
    "loss is no mean": r"^the (loss|gradient) of",
    "keeps state": r"keeps state in|and keeps it for all others|computes otherwise by it|have one of its own",
    "seeds torch": r"split operators have their own seeds|does not draw random numbers as",
    "draws elsewhere": r"draws from|torch\.Generator",
    "shares storage": r"share storage",
    "exchanges modules": r"the forward replaces the parameter",
    "writes": r"\b(is written|(over)?writes)\b",
    "needs a gradient": r"requires a gradient|post-accumulate-grad",
    "made in the forward": r"call the model once on a batch first",
    "cannot be sent": r"cannot be (sent|copied)",
    "cannot be captured": r"cannot be captured",
}
"""Kind of a refusal -> what its sentence has; of several the first counts."""


def outcome_of(outcome: Outcome) -> str:
    """As "equal", "equal, 1 kept whole" (modules) or "refused: keeps state"."""
    if outcome.kind == EQUAL:
        return f"{EQUAL}, {outcome.whole} kept whole" if outcome.whole else EQUAL
    if outcome.kind == REFUSED:
        return f"{REFUSED}: {_reason(outcome.message)}"
    return outcome.kind


def _reason(message: str) -> str:
    said = re.sub(r"\S+\.py\b|'[^']*'", "", message)  # names of files and things are no reason
    return next((kind for kind, has in REASONS.items() if re.search(has, said)), "other")
