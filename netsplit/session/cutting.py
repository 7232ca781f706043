"""Whether a batch is cut: not where micro-batches would train something else, unless their number is named.

a few samples ──few_differ──► plans ──batch_differs at the decided size──► one plan; or anew, of whole batches
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from netsplit.errors import CaptureError
from netsplit.graph.checks.cutting import (
    NotCompared,
    batch_differs,
    few_differ,
    refuse_shared_writes,
    why_not_compared,
)
from netsplit.graph.ir import Graph
from netsplit.planning.whole.whole_plan import WholePlan
from netsplit.session.step import ModelStep

__all__ = ["BatchCuts"]

log = logging.getLogger(__name__)


@dataclass
class BatchCuts:
    """What is known of cutting a step's batch, and what is to be said of it.

    Args:
        named: the numbers of micro-batches are the user's own, and taken whatever differs.
    """

    step: ModelStep
    named: bool
    remarks: list[str] = field(default_factory=list)  # of any plan
    differs: str = ""  # what does, where the batch is cut all the same; or why that is not known
    _compared: bool = False
    _failed: str = ""  # why a few samples were not compared

    def allowed(self, graph: Graph, counts: Sequence[int]) -> list[int]:
        """The numbers of micro-batches to look at, as a few samples tell.

        Args:
            graph: of the model at any size.

        Raises:
            CaptureError: the forward writes into what every micro-batch gets whole, and a number is named.
        """
        if max(counts) == 1 or self._compared:
            return list(counts)
        self._compared = True
        step = self.step
        given = step.model, step.loss, step.whole
        try:
            refuse_shared_writes(graph, step.whole)
        except CaptureError as error:
            if 1 not in counts:
                raise
            self.remarks.append(f"the batch is kept whole: {str(error).rstrip('.')}")
            return [1]
        if (missing := why_not_compared(*given)) is not None:
            self._not_compared(missing)
            return list(counts)
        log.info("Checking that micro-batch losses average to the batch loss.")
        least = min(m for m in counts if m > 1)
        size = -(-step.whole.samples // least)
        try:
            return self._left(counts, few_differ(*given, graph, size))
        except NotCompared as error:
            self._failed = str(error)
            return list(counts)

    def not_at_size(self) -> None:
        """The batch is not compared itself: where a few samples were not either, that is to be said."""
        if self._failed and not self.differs:
            self._not_compared(self._failed)

    def _not_compared(self, why: str) -> None:
        name = self.step.name
        self.differs = f"the losses of {name}'s micro-batches were not compared with its batch's: {why}"

    def at_size(self, graph: Graph, counts: Sequence[int]) -> list[int]:
        """The numbers to look at, as the batch in micro-batches of the graph's size tells.

        Raises:
            CaptureError: it is to be kept whole, and that is none of these numbers.
        """
        step = self.step
        if graph.batch_size >= step.whole.samples or self.differs:
            return list(counts)
        log.info("Comparing the batch with its micro-batches of %d samples.", graph.batch_size)
        given = step.model, step.loss, step.whole, graph, graph.batch_size
        return self._left(counts, batch_differs(*given, gradients=bool(self._failed) or not self._compared))

    def _left(self, counts: Sequence[int], differs: str | None) -> list[int]:
        if differs is None:
            return list(counts)
        if self.named:
            self.differs = (
                f"{differs}; each micro-batch trains with its own, as in gradient accumulation "
                "(schedule.microbatches=1 keeps the batch whole)"
            )
            return list(counts)
        if 1 not in counts:
            raise CaptureError(f"{differs}.")
        self.remarks.append(f"the batch is kept whole: {differs} (schedule.microbatches=N cuts it anyway)")
        return [1]

    def checked_plan(
        self, decide: Callable[[Sequence[int]], WholePlan], counts: Sequence[int], at_size: bool = True
    ) -> WholePlan:
        """Decide; and anew where only micro-batches of the very size that is decided differ.

        Args:
            decide: a plan with one of these numbers of micro-batches.
            at_size: compare the whole batch, which takes two forwards of it.
        """
        if not at_size:
            self.not_at_size()
        plan = decide(counts)
        differed = self.differs
        if not at_size or plan.schedule.microbatches in self.at_size(plan.plan.problem.graph, counts):
            notes = (self.differs, *plan.notes) if self.differs != differed else plan.notes
            return replace(plan, notes=notes)
        return decide([1])

    def notes_for(self, microbatches: int) -> tuple[str, ...]:
        """What is to be said of a plan with so many."""
        return (*self.remarks, *([self.differs] if self.differs and microbatches > 1 else ()))
