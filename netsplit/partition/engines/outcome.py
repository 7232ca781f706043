"""What an engine found of a mixed-integer model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from netsplit.partition.base import Status
from netsplit.partition.engines.rows import Floats

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """In the model's own units.

    Attributes:
        engine: its name and version.
        bound: no answer costs less; None where the engine gives none.
        values: [columns]; None without a solution.
        notes: the size of the model, why Gurobi was not used.
    """

    engine: str
    status: Status
    bound: float | None = None
    values: Floats | None = None
    notes: dict[str, Any] = field(default_factory=dict)
