"""Batches that all devices compute, then step on or take back together; what is said of their losses."""

from __future__ import annotations

import logging
import math
from typing import Any

from torch import Tensor

from netsplit.data.reading.reader import BatchPlace
from netsplit.errors import BatchError, NonFiniteError
from netsplit.graph.random_draws import DrawKey
from netsplit.program.instructions import Program
from netsplit.runtime import worker_calls
from netsplit.runtime.compiled import COMPILING_S
from netsplit.runtime.controller.loaded import LoadedPrograms
from netsplit.runtime.faults.failure import AS_BEFORE, BatchFailure
from netsplit.runtime.faults.nonfinite import Inspection
from netsplit.runtime.reading.giving import require_read
from netsplit.runtime.recorder import timeline_events
from netsplit.runtime.worker_calls import DeviceIteration
from netsplit.runtime.workers.messages import goes_as_bytes
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.settings import OnNonFinite
from netsplit.simulate.timeline import Timeline

__all__ = ["Attempts", "LossWords", "merged_timeline"]


class Attempts:
    """One after another, of the programs that the workers have."""

    def __init__(self, pool: WorkerPool, loaded: LoadedPrograms) -> None:
        self.pool, self.loaded = pool, loaded
        self.begun: Program | None = None  # of an iteration that is neither committed nor abandoned
        self._stepped: Program | None = None  # the last one that devices stepped by

    def computed(
        self, function: Any, program: Program, feeds: list[dict[str, Tensor]] | BatchPlace, *args: Any
    ) -> list[Any]:
        """What each device has of a batch, which none has stepped on.

        Raises:
            BatchError: one could not compute its part; all have taken back what they did.
            UnlikeBatch, ReadError: one could not read its part; likewise.
        """
        own = _parts_of(program, feeds)
        self.begun = program
        limit_s = COMPILING_S if self.loaded.uncompiled else 0.0
        parts = self.pool.call_each(function, [(mine, *args) for mine in own], limit_s)
        self.loaded.uncompiled = False
        failures = [(part, rank) for rank, part in enumerate(parts) if isinstance(part, BatchFailure)]
        if not failures:
            return parts
        self.abandon()
        require_read(self.pool, parts)
        self.pool.note([f"rank {rank}\n{failure.trace}" for failure, rank in failures])
        first, rank = min(failures, key=lambda each: each[0].at)  # it made the others compute with zeros
        raise BatchError(f"worker {self.pool.who(rank)} {first.reason}: {AS_BEFORE}.")

    def inspected(
        self,
        program: Program,
        feeds: list[dict[str, Tensor]],
        number: int,
        fractions: list[float],
        key: DrawKey,
    ) -> list[Inspection]:
        """What each device sees where a loss that is not finite comes from; all is taken back."""
        own = _parts_of(program, feeds)
        self.begun = program
        inspections: list[Inspection] = self.pool.call_each(
            worker_calls.inspect, [(mine, number, fractions, key) for mine in own]
        )
        self.abandon()
        return inspections

    def commit(self, wait: bool = True) -> list[DeviceIteration]:
        """Have all devices step on what they computed.

        Args:
            wait: for them to have done it, and for what they tell. A program's first step is waited for in
                any case: an optimiser that cannot step is then told of at once.
        """
        results: list[DeviceIteration] = []
        if wait or self.begun is not self._stepped:
            results = self.pool.call(worker_calls.commit)
        else:
            self.pool.post(worker_calls.commit)
        self._stepped, self.begun = self.begun, None
        return results

    def abandon(self) -> None:
        """Take back what all devices did."""
        self.pool.call(worker_calls.abandon)
        self.begun = None


def _parts_of(
    program: Program, feeds: list[dict[str, Tensor]] | BatchPlace
) -> list[list[dict[str, Tensor]]] | list[BatchPlace]:
    """What each device reads of every micro-batch; of a place, that."""
    if isinstance(feeds, BatchPlace):
        return [feeds for _ in program.devices]
    return [
        [{k: _to_send(feed[k]) for k in program.fed(name, i)} for i, feed in enumerate(feeds)]
        for name in program.devices
    ]


def _to_send(tensor: Tensor) -> Tensor:
    """Rows of a batch, without the rest of its memory."""
    return tensor if goes_as_bytes(tensor) else tensor.clone()


def merged_timeline(results: list[DeviceIteration], seconds: float) -> Timeline:
    """One timeline with the earliest device's begin as zero."""
    zero = min(result.began_s for result in results)
    events = timeline_events((event for result in results for event in result.events), zero)
    peaks = {result.device: result.peak_bytes for result in results if result.peak_bytes is not None}
    hosts = {result.device: result.host_bytes for result in results if result.host_bytes is not None}
    return Timeline(events, seconds, peaks, hosts)


log = logging.getLogger(__name__)


class LossWords:
    """Each is said once, of losses that are not finite once again after one that was.

    Args:
        rule: what happens on a loss that is not finite (see `UpdateRule`).
    """

    def __init__(self, rule: OnNonFinite | None) -> None:
        self.rule = rule
        self._warned = False  # that losses are not finite, since the last that was
        self._zeros_said = False  # that zeros were taken where there was no gradient

    @property
    def of_nonfinite(self) -> bool:
        """Whether there is something to be said of one that is not finite."""
        return self.rule is not None and not (self.rule == "warn" and self._warned)

    def stepped_on(self, said: str) -> bool:
        """Say that devices have stepped on this loss already; True: it is trained.

        Raises:
            NonFiniteError: the rule says so.
        """
        said += ", and under this schedule devices have stepped on it already"
        if self.rule == "stop":
            raise NonFiniteError(f"{said} (on_nonfinite=warn trains on).")
        log.warning("%s", said)
        self._warned = True
        return True

    def taken_back(self, said: str) -> bool:
        """Say that this loss's batch was taken back; whether to train it yet.

        Raises:
            NonFiniteError: the rule says so.
        """
        if self.rule == "stop":
            raise NonFiniteError(
                f"{said}: {AS_BEFORE} (on_nonfinite=warn trains on it, on_nonfinite=skip leaves it out)."
            )
        log.warning("%s; %s", said, "it is left out" if self.rule == "skip" else "trained on all the same")
        self._warned = True
        return self.rule == "warn"

    def zeros(self) -> None:
        """Say once that devices stepped on zeros where there was no gradient."""
        if not self._zeros_said:
            self._zeros_said = True
            log.warning(
                "Code that is kept whole did not use its input, so what comes before it on other devices got "
                "a gradient of zeros instead of none: momentum and weight decay move parameters that plain "
                "PyTorch leaves alone (said once)."
            )

    def trained(self, loss: float) -> None:
        """Note a loss that is about to be stepped on."""
        self._warned = self._warned and not math.isfinite(loss)
