"""What is told of micro-batches that do not add up to their batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["OTHERWISE", "CutApart"]

OTHERWISE = (
    "; each micro-batch trains with its own, as in gradient accumulation (schedule=single_batch trains on "
    "the whole batch at once)"
)
"""Of a batch that is cut all the same."""


@dataclass(frozen=True)
class CutApart:
    """That the losses of micro-batches do not add up to that of the batch they are cut of."""

    kind: Literal["sum", "no number", "list", "other", "kept", "unknown"]
    words: str = ""  # what is apart, as the beginning of a sentence
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.words}{self.cure}"
