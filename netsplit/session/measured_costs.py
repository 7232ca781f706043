"""Costs of a training step on running workers: each device kind alone, then together.

one worker of each kind, alone      operators, optimiser, instructions        reused from disk
all CPU workers of a kind at once   contention, messages (`trial_run`)        reused if it was steady

A short trial run checks reused costs; outdated ones are measured again. With `predicted`, only the devices'
speed is measured, by fixed reference work.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from netsplit.cluster.cluster import Cluster
from netsplit.cluster.local import ClusterSpec
from netsplit.graph.ir import Graph
from netsplit.graph.recording.whole import settings
from netsplit.placement.placement import Placement
from netsplit.profile.costs import Costs, SizeSeconds
from netsplit.profile.measure.clock import trivial_step
from netsplit.profile.measure.optimizer import describe_optimizer, optimizer_alpha, optimizer_scratch
from netsplit.profile.measure.stretch import SizedStep, take_turns
from netsplit.profile.measured import Measured, ProfileCache, profile_digest
from netsplit.program.compile import compile_program
from netsplit.program.schedules import SingleBatch
from netsplit.progress import Stages
from netsplit.runtime.controller import tell
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.workers.messages import Worker
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.session.calibration import (
    REPEATS,
    Calibration,
    KnownParts,
    MeasuredParts,
    begin_measuring,
    identity_of,
    mates_of,
    measure_copying,
    measure_part,
    predicted_here,
    speed_of,
)
from netsplit.session.trial_run import FAR, TrialRun, checked_trial, fit_trial

__all__ = ["CostSource", "MeasuredCosts", "controller_seconds"]

log = logging.getLogger(__name__)


class CostSource(Protocol):
    """Costs of training steps on some devices."""

    @property
    def is_local(self) -> bool:
        """Whether the devices are here, to train on."""

    @property
    def predicted(self) -> bool:
        """Whether seconds are predicted for every micro-batch size instead of measured for two."""

    @property
    def count(self) -> int:
        """The number of devices."""

    def of(self, task: Calibration, alone: bool = False) -> Costs:
        """Costs of a step on every device kind; `alone`: without contention between devices."""

    def cluster(self, graph: Graph, costs: Costs, in_flight: int) -> Cluster:
        """The devices and links for a graph."""

    def meter(self, task: Calibration, whole: Costs, known: KnownParts | None = None) -> MeasuredParts | None:
        """The meter of unknown operators in parts; None if seconds are predicted."""


@dataclass(eq=False)
class MeasuredCosts:
    """Costs on workers; if `predicted`, only the workers' speed is measured."""

    spec: ClusterSpec
    predicted: bool
    cache: ProfileCache
    stages: Stages
    pool: Callable[[], WorkerPool]
    linked: Callable[[], Cluster]
    controller_s: float | None = None  # of an iteration, once measured
    is_local: ClassVar[bool] = True

    @property
    def count(self) -> int:
        return len(self.spec.devices)

    def of(self, task: Calibration, alone: bool = False) -> Costs:
        if self.predicted:
            costs = predicted_here(task.graph, task.optimizer, self.pool(), self.linked())
        else:
            tell(self.pool(), [task.graph], task.optimizer)
            costs = self.measured(task, alone)
        if self.controller_s is None and self.pool().deployed is None:
            self.controller_s = controller_seconds(self.pool(), self.linked(), costs)
        return replace(costs, controller_s=self.controller_s or 0.0)

    def cluster(self, graph: Graph, costs: Costs, in_flight: int) -> Cluster:
        return self.linked()

    def in_turn(self, steps: Sequence[SizedStep], values: dict[str, Tensor]) -> SizeSeconds:
        """Seconds of whole micro-batches of several sizes on every device kind, cached or measured."""
        seconds: dict[str, dict[int, float]] = {}
        sent = [replace(step, graph=replace(step.graph, output_spec=None)) for step in steps]
        sizes = [(step.graph.batch_size, step.in_flight) for step in sent]
        pool, cache = self.pool(), self.cache
        for rank, device in enumerate(self.linked().devices):
            if device.kind in seconds:
                continue
            digest = f"sizes-{profile_digest(sent[0].graph, identity_of(pool, rank), sizes=sizes)}"
            kept = cache.get(digest, dict[int, float])
            if kept is None:
                log.info("Measuring %d micro-batch sizes on %s.", len(sizes), device.name)
                kept = pool.call_one(rank, _take_turns, sent, values)
                cache.put(digest, kept)
            seconds[device.kind] = kept
        return seconds

    def meter(self, task: Calibration, whole: Costs, known: KnownParts | None = None) -> MeasuredParts | None:
        if self.predicted:
            return None
        known = {} if known is None else known
        return MeasuredParts(task, whole, self.pool, self.linked(), self.cache, self.stages.note, known)

    def measured(self, task: Calibration, alone: bool = False) -> Costs:
        """Costs of every device kind, cached or measured."""
        measured: dict[str, Measured] = {}
        devices = self.linked().devices
        mates = {rank: [rank] if alone else mates_of(devices, rank) for rank in range(len(devices))}
        for rank in sorted(mates, key=lambda rank: -len(mates[rank])):  # most contention first
            kind = devices[rank].kind
            if kind not in measured:
                measured[kind] = self._of_kind(task, mates[rank], rank)
        costs = {kind: replace(each.costs, unsure=not each.steady) for kind, each in measured.items()}
        return replace(
            Costs(costs, optimizer_alpha(task.optimizer)), scratch=optimizer_scratch(task.optimizer)
        )

    def _of_kind(self, task: Calibration, mates: list[int], rank: int) -> Measured:
        """Cached costs, or measured on `rank` alone, then with `mates`; unsure parts are not cached."""
        device, spec, cache = self.linked().devices[rank], self.spec, self.cache
        digest = profile_digest(
            task.graph,
            identity_of(self.pool(), rank),
            settings=settings(),
            optimizer=describe_optimizer(task.optimizer),
            in_flight=task.in_flight,
            mates=len(mates),
            processors=device.processors,
            links=None if spec.bandwidth is None else (spec.latency_s, spec.bandwidth),
        )
        measured = cache.get(digest, Measured)
        if measured is not None:
            tried = mates if measured.steady else [rank]
            if not self._still_true(task, measured, tried, rank):
                measured, cache.refresh = None, True
            elif measured.steady:
                return measured
            else:
                log.info("Measuring the slow-down between workers again: the last result was uncertain.")
        if measured is None:
            graph = task.graph
            log.info(
                "Measuring %d operators on %s, %d samples at a time.",
                len(graph), device.name, graph.batch_size,
            )  # fmt: skip
            measured = self._measured_alone(task, rank)
        if len(mates) < 2:
            cache.put(digest, measured)
            return measured
        complete = self._together(task, measured, mates)
        cache.put(digest, complete if complete.steady else replace(measured, steady=False))
        return complete

    def _measured_alone(self, task: Calibration, rank: int) -> Measured:
        """One worker's measurement, part by part, to report progress."""
        what = f"measuring on {self.linked().devices[rank].name}"
        done, parts = 0, 2 * (1 + REPEATS)
        self.stages.part(what, done, parts)
        self.pool().call_one(rank, begin_measuring, task)
        while (measured := self.pool().call_one(rank, measure_part)) is None:
            done += 1
            self.stages.part(what, done, parts := max(parts, done))
        assert isinstance(measured, Measured)
        return measured

    def _together(self, task: Calibration, alone: Measured, mates: list[int]) -> Measured:
        """Costs with copying and contention, which show only while several devices compute."""
        copying = self.pool().call(measure_copying, mates[:2])
        costs = replace(alone.costs, copy_s_per_byte=sum(copying[rank] for rank in mates[:2]) / 2)
        trial = self._trial(task, mates)
        log.info("Trial run: how much do %s slow each other down?", " and ".join(trial.names))
        known = Costs({trial.kind: costs}, optimizer_alpha(task.optimizer))
        fit = fit_trial(trial, known, self.linked(), self.pool(), self.stages)
        # 0 s: no cost of a message shows, so an instruction's overhead stands for it.
        costs = replace(costs, contention=fit.contention, message_s=fit.message_s or None)
        return replace(alone, costs=costs, steady=fit.steady)

    def _trial(self, task: Calibration, ranks: list[int]) -> TrialRun:
        devices = self.linked().devices
        return TrialRun(task, devices[ranks[0]].kind, tuple(devices[rank].name for rank in ranks))

    def _still_true(self, task: Calibration, kept: Measured, tried: list[int], rank: int) -> bool:
        """Whether a short trial run (reference work on a GPU) agrees with cached costs within `FAR`."""
        device = self.linked().devices[rank]
        if torch.device(device.torch_device).type == "cpu":
            what, known = "A trial run", Costs({device.kind: kept.costs}, optimizer_alpha(task.optimizer))
            predicted_s, took_s = checked_trial(self._trial(task, tried), known, self.linked(), self.pool())
        else:
            what, predicted_s = "A reference computation", kept.reference_s
            took_s = self.pool().call_one(rank, speed_of)
        ago = _ago(max(time.time() - kept.measured_at, 0.0))
        off = took_s / predicted_s - 1 if predicted_s > 0 else 0.0
        took = f"{what} takes {100 * abs(off):.0f} % {'longer' if off > 0 else 'less'} than predicted"
        if abs(off) <= FAR:
            log.info("Using the costs measured on %s %s ago. %s.", device.name, ago, took)
            return True
        log.warning(
            "The costs measured on %s %s ago are out of date. %s (%.1f ms, not %.1f ms). Measuring again.",
            device.name, ago, took, 1e3 * took_s, 1e3 * predicted_s,
        )  # fmt: skip
        return False


def _take_turns(worker: Worker, steps: list[SizedStep], values: dict[str, Tensor]) -> dict[int, float]:
    return take_turns(steps, values, worker.torch_device)


def _ago(seconds: float) -> str:
    for name, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


_TRIVIAL_REPEATS = 24


def controller_seconds(pool: WorkerPool, cluster: Cluster, costs: Costs) -> float:
    """Seconds of a trivial iteration on the first worker, less its instructions."""
    name, graph = cluster.devices[0].name, trivial_step()
    program = compile_program(graph, Placement.given({"mul": name}, {"mul": 0}), cluster, SingleBatch())
    runtime = DistributedRuntime(program, pool, {"w": torch.ones(1, dtype=torch.float32)}, None)
    batch, seconds = torch.ones(1, dtype=torch.float32), []
    for _ in range(_TRIVIAL_REPEATS):
        began = time.perf_counter()
        runtime.train_batch(batch)
        seconds.append(time.perf_counter() - began)
    pool.deployed = None
    instructions_s = len(program.instructions[name]) * costs.of(cluster.devices[0].kind).instruction_s
    return max(sorted(seconds)[_TRIVIAL_REPEATS // 4] - instructions_s, 0.0)
