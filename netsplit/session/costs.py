"""What a training step costs: on workers that are here, each device kind alone, then together; or predicted.

one worker of each kind, alone      operators, optimiser, instructions        reused from disk
all CPU workers of a kind at once   contention, messages (`trial_run`)        reused if it was steady

What is reused is checked by a short trial run, and measured anew where it is out of date. Or all of it is
predicted, and the speed of the devices here alone measured, by a piece of work that is always the same. Or it
comes from a graph file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from netsplit.cluster.catalogue import Rates
from netsplit.cluster.cluster import Cluster
from netsplit.cluster.described import ClusterDescription
from netsplit.cluster.local import ClusterSpec, check_offload
from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph
from netsplit.graph.recording.whole import settings
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.placement.placement import Placement
from netsplit.planning.decide import decide_scheduled, decide_whole
from netsplit.planning.plan import Plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, OptimizerScratch, SizeSeconds
from netsplit.profile.measure.clock import reference_seconds, trivial_step
from netsplit.profile.measure.compute import SizedStep, take_turns
from netsplit.profile.measure.optimizer import describe_optimizer, optimizer_alpha, optimizer_scratch
from netsplit.profile.measured import Measured, ProfileCache, profile_digest
from netsplit.profile.predict import predicted_costs
from netsplit.program.compile import compile_program
from netsplit.program.schedules import GPipe, Schedule, SingleBatch
from netsplit.progress import Stages
from netsplit.runtime.controller import tell
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.share import OptimizerFactory
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
    rates_here,
    speed_of,
)
from netsplit.session.trial_run import FAR, TrialRun, checked_trial, fit_trial
from netsplit.settings import OffloadName, check_numbers

__all__ = ["CostSource", "FileCosts", "MeasuredCosts", "PredictedCosts", "controller_seconds"]

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


@dataclass
class PredictedCosts:
    """Costs from the rates of devices, by kind, which need not be here; no worker is started.

    `resolved` makes the cluster of a graph, by the kind that its costs are of and the bytes of all of it.
    `host`: devices of a host, where all of a description's are alike; else 0. `nccl`: collectives
    take what NCCL's do.
    """

    count: int
    rates: Mapping[str, Rates]
    resolved: Callable[[str, int], Cluster]
    overlap: bool = True
    device_type: str = "cpu"
    host: int = 0
    nccl: bool = False
    _optimizer: tuple[OptimizerFactory, int, OptimizerScratch] | None = None  # the last, with what it keeps
    is_local: ClassVar[bool] = False
    predicted: ClassVar[bool] = True

    def of(self, task: Calibration, alone: bool = False) -> Costs:
        if self._optimizer is None or self._optimizer[0] is not task.optimizer:
            scratch = optimizer_scratch(task.optimizer)
            self._optimizer = task.optimizer, optimizer_alpha(task.optimizer), scratch
        _, alpha, scratch = self._optimizer
        costs = replace(predicted_costs(task.graph, self.rates, alpha), scratch=scratch)
        return costs if self.overlap else costs.without_overlap()

    def cluster(self, graph: Graph, costs: Costs, in_flight: int) -> Cluster:
        work = Workload("", graph, costs)
        return self.resolved(work.base_kind, work.need_bytes(in_flight))

    def meter(self, task: Calibration, whole: Costs, known: KnownParts | None = None) -> None:
        return None

    @classmethod
    def for_cluster(
        cls,
        cluster: ClusterSpec | ClusterDescription,
        autocast: str | None = None,
        offload: OffloadName = "none",
    ) -> PredictedCosts:
        """Predicts for a description that names models, or for this machine, with its `unprobed` links."""
        if isinstance(cluster, ClusterSpec):
            check_offload(offload, cluster.devices)
            known = cluster.unprobed
            kinds = {torch.device(device.torch_device).type for device in cluster.devices}
            places = [device.torch_device for device in cluster.devices]
            rates = rates_here(cluster.devices, autocast, lambda rank: reference_seconds(places[rank]))
            return cls(len(cluster.devices), rates, lambda base, need: known, device_type=min(kinds))
        cluster.require_models()
        for each in cluster.accelerators.values():
            each.under(autocast)
        rates = {each.name: each for each in cluster.accelerators.values()}
        return cls(
            len(cluster.speeds), rates, cluster.cluster, cluster.overlap, host=cluster.alike_hosts,
            nccl=cluster.collectives == "nccl",
        )  # fmt: skip


@dataclass(frozen=True)
class FileCosts:
    """Costs that were measured at one size of micro-batches, and how many of these make a batch.

    Args:
        cluster: None: the file's own.
        offload: None: as in the file.
    """

    work: Workload
    cluster: Cluster | ClusterDescription | None = None
    microbatches: int = 1
    offload: OffloadName | None = None

    def __post_init__(self) -> None:
        check_numbers(microbatches=self.microbatches)
        if not self.work.knows_lifetimes:
            raise ConfigError(
                f"'{self.work.name}' does not list the saved activations: plan it with `python -m "
                "runners.partition`."
            )

    def for_step(self, model: nn.Module, samples: int) -> FileCosts:
        """The costs with as many micro-batches as a batch of so many samples has."""
        if samples % (size := self.work.graph.batch_size):
            raise ConfigError(
                f"the batch has {samples} samples, but '{self.work.name}' was measured with micro-batches "
                f"of {size}: give a multiple of that."
            )
        own = {name: tuple(each.shape) for name, each in model.named_parameters(remove_duplicate=False)}
        for name, each in self.work.graph.initializers.items():
            of_loss = name.startswith("loss.") and name not in own
            if each.is_parameter and not of_loss and own.get(name) != tuple(each.shape):
                has = f"has it as {own[name]}" if name in own else "has none"
                raise ConfigError(
                    f"profile was measured of another model: its '{name}' is of shape {tuple(each.shape)}, "
                    f"and {type(model).__name__} {has}."
                )
        return replace(self, microbatches=samples // size)

    def plan(
        self,
        order: Schedule | AutoSchedule,
        method: Partitioner,
        seed: int = 0,
        stages: Stages | None = None,
    ) -> Plan:
        """The best plan with these micro-batches; told to `stages`."""
        improved = None if stages is None else stages.improved
        samples = self.microbatches * self.work.graph.batch_size
        if order.decides_everything:
            problem = self._problem(GPipe(self.microbatches), seed)
            chosen = None if method.tries_others else method
            counts = [self.microbatches]
            why = f"'{self.work.name}' was measured with micro-batches of {self.work.graph.batch_size}"
            left_out = order.not_as_given(samples, counts, why)
            return decide_whole(
                lambda m: problem, counts, samples, order, method=chosen, improved=improved,
                remarks=lambda m: left_out,
            )  # fmt: skip
        problem = self._problem(order.with_microbatches(self.microbatches), seed)
        return decide_scheduled(replace(problem, improved=improved), method, samples)

    def _problem(self, schedule: Schedule, seed: int) -> Problem:
        return self.work.problem(
            self.cluster, "simulated", schedule=schedule, seed=seed, memory="lifetimes", offload=self.offload
        )
