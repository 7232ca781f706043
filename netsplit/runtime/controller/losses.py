"""What is said of a batch: a loss that is no finite number, or a mean over unequal numbers of targets; zeros
that stand for no gradient.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from netsplit.errors import NonFiniteError
from netsplit.program.instructions import Program
from netsplit.runtime.faults.counted_targets import uneven
from netsplit.runtime.faults.failure import AS_BEFORE
from netsplit.runtime.values import Key
from netsplit.settings import OnNonFinite

__all__ = ["LossWords"]

log = logging.getLogger(__name__)


class LossWords:
    """Each is said once, of losses that are not finite once again after one that was.

    Args:
        rule: what happens on a loss that is not finite (see `UpdateRule`).
        cut_said: that micro-batches train otherwise than their batch has been said before.
    """

    def __init__(self, rule: OnNonFinite | None, cut_said: bool = False) -> None:
        self.rule = rule
        self._said = False  # that losses are not finite, since the last that was
        self._uneven_said = cut_said  # that micro-batches have different numbers of targets that count
        self._zeros_said = False  # that zeros were taken where there was no gradient

    @property
    def of_nonfinite(self) -> bool:
        """Whether there is something to be said of one that is not finite."""
        return self.rule is not None and not (self.rule == "warn" and self._said)

    def stepped_on(self, said: str) -> bool:
        """Of one that devices have stepped on already: it is trained.

        Raises:
            NonFiniteError: the rule says so.
        """
        said += ", and under this schedule devices have stepped on it already"
        if self.rule == "stop":
            raise NonFiniteError(f"{said} (on_nonfinite=warn trains on).")
        log.warning("%s", said)
        self._said = True
        return True

    def taken_back(self, said: str) -> bool:
        """Of one whose batch was taken back; whether to train it yet.

        Raises:
            NonFiniteError: the rule says so.
        """
        if self.rule == "stop":
            raise NonFiniteError(
                f"{said}: {AS_BEFORE} (on_nonfinite=warn trains on it, on_nonfinite=skip leaves it out)."
            )
        log.warning("%s; %s", said, "it is left out" if self.rule == "skip" else "trained on all the same")
        self._said = True
        return self.rule == "warn"

    def zeros(self) -> None:
        """Of gradients of which there was none, where devices have stepped already."""
        if not self._zeros_said:
            self._zeros_said = True
            log.warning(
                "Code that is kept whole did not use its input, so what comes before it got no gradient. "
                "Under this schedule devices stepped on zeros instead: momentum and weight decay move "
                "parameters that plain PyTorch leaves alone (said once)."
            )

    def trained(self, program: Program, loss: float, outputs: Mapping[Key, float], iteration: int) -> None:
        """Of one that is about to be stepped on."""
        self._said = self._said and not math.isfinite(loss)
        numbers = None if self._uneven_said else uneven(program, outputs)
        if numbers is not None:
            self._uneven_said = True
            log.warning(
                "The loss is a mean over the targets that count, and the micro-batches of iteration %d have "
                "%s of them. Each is averaged by itself, as in gradient accumulation (schedule=single_batch "
                "averages over the whole batch; said once).",
                iteration, ", ".join(f"{number:g}" for number in numbers),
            )  # fmt: skip
