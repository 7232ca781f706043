"""What the solvers of `max_load` answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.objectives import MaxLoad
from netsplit.partition.partitioner import Choice
from netsplit.placement.placement import Status

__all__ = ["MaxLoadAnswer", "answer_of"]


@dataclass(frozen=True)
class MaxLoadAnswer:
    """A placement and what is proven of it. `bound_s` is never more than `value_s`."""

    where: Ints  # [n] device of each node
    value_s: float  # instance.loads(where).max()
    bound_s: float  # no placement of the kind that was asked for has less
    status: Status
    engine: str
    notes: dict[str, Any] = field(default_factory=dict)

    def choice(self, instance: Instance) -> Choice:
        """The same for a `Partitioner`."""
        return Choice(
            instance.decode(self.where),
            status=self.status,
            engine=self.engine,
            objective_s=self.value_s,
            bound_s=self.bound_s,
            bound_for=MaxLoad.bound_key,
            notes=self.notes,
        )


def answer_of(
    instance: Instance,
    where: Ints,
    bound_s: float,
    gap: float,
    engine: str,
    notes: dict[str, Any],
) -> MaxLoadAnswer:
    """The answer with its exact value; "optimal" where the bound is within `gap` of it."""
    value = float(instance.loads(where).max(initial=0.0))
    bound = max(0.0, min(bound_s, value))
    return MaxLoadAnswer(
        where=where,
        value_s=value,
        bound_s=bound,
        status="optimal" if value - bound <= gap * value else "feasible",
        engine=engine,
        notes=notes,
    )
