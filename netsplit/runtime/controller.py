"""The controller's view of its workers: their programs, the batch under way, warnings of losses."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from netsplit.data.reading.loader import BatchPlace
from netsplit.errors import BatchError, NonFiniteError
from netsplit.graph.ir import Graph, Initializer
from netsplit.graph.random_draws import DrawKey
from netsplit.graph.recording.whole import carried_modules, settings, take_settings
from netsplit.interrupts import interrupts_held
from netsplit.profile.costs import Offload
from netsplit.program.instructions import Program
from netsplit.runtime import worker_calls
from netsplit.runtime.checkpoint.weights import WeightSource
from netsplit.runtime.faults import AS_BEFORE, BatchFailure, Inspection
from netsplit.runtime.feeds import require_read
from netsplit.runtime.recorder import timeline_events
from netsplit.runtime.share import OptimizerFactory, UpdateRule
from netsplit.runtime.transport.handle import COMPILING_S
from netsplit.runtime.worker_calls import DeviceIteration
from netsplit.runtime.workers.messages import Worker, goes_as_bytes
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.settings import OnNonFinite
from netsplit.simulate.timeline import Timeline

__all__ = [
    "Attempts", "LoadedPrograms", "LossWords", "graphs_of", "light", "merged_timeline", "tell", "to_send",
]  # fmt: skip

log = logging.getLogger(__name__)


def tell(pool: WorkerPool, graphs: list[Graph], *others: Any) -> None:
    """Send the process's settings to workers, so that later code runs under the same."""
    calls = [call for graph in graphs for call in graph.calls.values()]
    pool.carried |= dict.fromkeys(carried_modules([*calls, *(each for each in others if each is not None)]))
    pool.call(_take, settings())


def _take(worker: Worker, settings: dict[str, Any]) -> None:
    del worker
    take_settings(settings)


class LoadedPrograms:
    """Programs on the workers, by number; training uses the first. `values` are all initializers."""

    def __init__(
        self, program: Program, pool: WorkerPool, values: Mapping[str, Tensor], backend: str | None
    ) -> None:
        self.pool, self.values, self.backend = pool, values, backend
        self.uncompiled = backend is not None  # partly: a program's first iteration compiles
        self.late: set[str] = set()  # initializers that came with later programs
        self.sent_s = 0.0  # spent on sending further programs
        self._every = [program]

    def __iter__(self) -> Iterator[Program]:
        return iter(self._every)

    def deploy(
        self,
        optimizer: OptimizerFactory | None,
        rule: UpdateRule | None,
        weights: WeightSource | None,
        offload: Offload | None,
    ) -> None:
        (program,) = self._every
        initializers = program.graph.initializers
        self.pool.call_each(
            worker_calls.deploy,
            [
                (
                    light(program),
                    {
                        k: own
                        for k in program.held[name]
                        if not (own := to_send(initializers[k], self.values)).is_meta
                    },
                    optimizer,
                    rule,
                    weights,
                    self.backend,
                    offload,
                )
                for name in program.devices
            ],
        )

    def number(self, program: Program) -> int:
        """The program's number on the workers; a new program is sent to them."""
        for number, known in enumerate(self._every):
            if known is program:
                return number
        began = time.perf_counter()
        missing = program.holders.keys() - {k for each in self._every for k in each.holders}
        values = {**self.values, **program.graph.constants}
        new: dict[str, dict[str, Tensor]] = {device: {} for device in program.devices}
        for k in missing:
            value = to_send(program.graph.initializers[k], values)
            for device in program.holders[k] if not value.is_meta else ():
                new[device][k] = value
        number, sent = len(self._every), light(program)
        tell(self.pool, graphs_of(program))
        with interrupts_held(firmly=True):
            self.pool.call_each(worker_calls.add, [(number, sent, new[device]) for device in program.devices])
            self._every.append(program)
            self.uncompiled = self.backend is not None
            self.late |= missing - program.graph.constants.keys()
            self.sent_s += time.perf_counter() - began
        return number

    def switched(self, program: Program, late: Mapping[str, Tensor]) -> None:
        """Note that workers now have only this program."""
        self._every, self.late, self.values = [program], set(), {**self.values, **late}
        self.uncompiled = self.backend is not None


def graphs_of(program: Program) -> list[Graph]:
    return [graph for graph in (program.graph, program.tail) if graph is not None]


def light(program: Program) -> Program:
    """The program without constants and the outputs' structure, which workers do not need."""
    plain: dict[str, Any] = {"constants": {}, "output_spec": None}
    tail = None if program.tail is None else replace(program.tail, **plain)
    return replace(program, graph=replace(program.graph, **plain), tail=tail)


def to_send(initializer: Initializer, values: Mapping[str, Tensor]) -> Tensor:
    """An initializer's tensor; a part is copied, as a view would take its whole along."""
    value: Tensor = initializer.within(values).detach()
    return value if initializer.region is None or value.is_meta else value.clone()


class Attempts:
    """Iterations in two halves: compute, then commit or abandon."""

    def __init__(self, pool: WorkerPool, loaded: LoadedPrograms) -> None:
        self.pool, self.loaded = pool, loaded
        self.begun: Program | None = None  # pending, of an iteration
        self._stepped: Program | None = None  # last program that devices stepped with

    def computed(
        self, function: Any, program: Program, feeds: list[dict[str, Tensor]] | BatchPlace, *args: Any
    ) -> list[Any]:
        """Compute a batch on all devices, without stepping.

        Raises:
            BatchError, UnlikeBatch, ReadError: one could not compute or read its part; all is as before.
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
        first, rank = min(failures, key=lambda each: each[0].at)  # it sent zeros to the others
        raise BatchError(f"worker {self.pool.who(rank)} {first.reason}: {AS_BEFORE}.")

    def inspected(
        self,
        program: Program,
        feeds: list[dict[str, Tensor]],
        number: int,
        fractions: list[float],
        key: DrawKey,
    ) -> list[Inspection]:
        """Trace a loss that is not finite back to its origin on each device; everything is taken back."""
        own = _parts_of(program, feeds)
        self.begun = program
        inspections: list[Inspection] = self.pool.call_each(
            worker_calls.inspect, [(mine, number, fractions, key) for mine in own]
        )
        self.abandon()
        return inspections

    def commit(self, wait: bool = True) -> list[DeviceIteration]:
        """Have all devices step on what they computed, and `wait` for their results.

        A program's first step is always waited for, so that an optimiser that cannot step is told of at once.
        """
        results: list[DeviceIteration] = []
        if wait or self.begun is not self._stepped:
            results = self.pool.call(worker_calls.commit)
        else:
            self.pool.post(worker_calls.commit)
        self._stepped, self.begun = self.begun, None
        return results

    def abandon(self) -> None:
        self.pool.call(worker_calls.abandon)
        self.begun = None


def _parts_of(
    program: Program, feeds: list[dict[str, Tensor]] | BatchPlace
) -> list[list[dict[str, Tensor]]] | list[BatchPlace]:
    if isinstance(feeds, BatchPlace):
        return [feeds for _ in program.devices]
    return [
        [
            {k: feed[k] if goes_as_bytes(feed[k]) else feed[k].clone() for k in program.fed(name, i)}
            for i, feed in enumerate(feeds)
        ]
        for name in program.devices
    ]


def merged_timeline(results: list[DeviceIteration], seconds: float) -> Timeline:
    """One timeline that starts with the earliest device."""
    zero = min(result.began_s for result in results)
    events = timeline_events((event for result in results for event in result.events), zero)
    peaks = {result.device: result.peak_bytes for result in results if result.peak_bytes is not None}
    hosts = {result.device: result.host_bytes for result in results if result.host_bytes is not None}
    return Timeline(events, seconds, peaks, hosts)


class LossWords:
    """Warnings of non-finite losses, each shown once until a loss is finite again.

    Args:
        rule: what happens on a loss that is not finite (see `UpdateRule`).
    """

    def __init__(self, rule: OnNonFinite | None) -> None:
        self.rule = rule
        self._warned = False  # warned since the last finite loss
        self._zeros_said = False  # warned of zeros in place of gradients

    @property
    def of_nonfinite(self) -> bool:
        return self.rule is not None and not (self.rule == "warn" and self._warned)

    def tell(self, sentence: str, stepped: bool) -> bool:
        """Report a non-finite loss; returns whether to train on the batch.

        Args:
            stepped: devices have stepped on it already; else all was taken back.

        Raises:
            NonFiniteError: the rule says so.
        """
        if stepped:
            sentence += ", and under this schedule devices have already stepped on it"
        elif self.rule != "stop":
            sentence += f"; the batch is {'skipped' if self.rule == 'skip' else 'trained on anyway'}"
        if self.rule == "stop":
            cure = " (on_nonfinite=warn trains on)."
            if not stepped:
                cure = f": {AS_BEFORE} (on_nonfinite=warn trains on it, on_nonfinite=skip skips it)."
            raise NonFiniteError(f"{sentence}{cure}")
        log.warning("%s", sentence)
        self._warned = True
        return self.rule == "warn"

    def zeros(self) -> None:
        """Warn once that devices stepped on zeros where there was no gradient."""
        if not self._zeros_said:
            self._zeros_said = True
            log.warning(
                "Code that was not captured did not use its input, so the operators before it got no "
                "gradient. Under this schedule devices stepped on zeros instead: momentum and weight "
                "decay change parameters that plain PyTorch would not (shown once)."
            )

    def trained(self, loss: float) -> None:
        self._warned = self._warned and not math.isfinite(loss)
