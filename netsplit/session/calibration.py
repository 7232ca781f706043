"""Costs of a graph on a session's workers: each device kind alone, then together.

one worker of each kind, alone      operators, optimiser, instructions        reused from disk
all CPU workers of a kind at once   contention, messages (`trial_run`)        with the rest, if it was steady

What is reused is checked by a short trial run, and measured anew where it is out of date.

Or all of it is predicted, and the devices' speed alone measured, by a piece of work that is always the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from netsplit.cluster.catalogue import rates_by_kind
from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph
from netsplit.graph.surroundings.settings import settings
from netsplit.placement.placement import Placement
from netsplit.profile.costs import Costs, DeviceCosts
from netsplit.profile.measure.clock import (
    copy_seconds_per_byte,
    host_seconds_per_byte,
    instruction_seconds,
    reference_seconds,
    trivial_step,
)
from netsplit.profile.measure.compute import Profiler, walks_to_settle
from netsplit.profile.measure.optimizer import (
    accumulate_seconds_per_byte,
    describe_optimizer,
    optimizer_alpha,
    optimizer_scratch,
    step_seconds_per_byte,
)
from netsplit.profile.measure.predicted_bytes import transient_bytes
from netsplit.profile.measured import Measured, ProfileCache, profile_digest
from netsplit.profile.predict import predicted_costs
from netsplit.program.compile import compile_program
from netsplit.program.schedules import GPipe
from netsplit.progress import Stages
from netsplit.runtime.executor import Executor
from netsplit.runtime.share import OptimizerFactory, Share
from netsplit.runtime.transport.local import LocalTransport
from netsplit.runtime.workers.machines import identity_of, mates_of
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker
from netsplit.session.trial_run import FAR, TrialRun, checked_trial, fit_trial

__all__ = ["Calibration", "Calibrator", "predicted_here"]

log = logging.getLogger(__name__)

REPEATS = 4  # timed walks over the graph in one of two rounds
MEASURING = "measuring"  # key of a worker's memory


@dataclass(frozen=True)
class Calibration:
    """What there is to measure.

    Args:
        batch: the graph's inputs for one micro-batch.
        values: the initializers.
        in_flight: micro-batches that a device computes before its first backward.
    """

    graph: Graph
    batch: tuple[Tensor, ...]
    values: dict[str, Tensor]
    optimizer: OptimizerFactory
    in_flight: int = 1


@dataclass(frozen=True)
class Calibrator:
    """Costs of every device kind: kept ones where nothing has changed, else measured now.

    Args:
        alone: of one device of each kind, without a trial run of several.
    """

    task: Calibration
    pool: WorkerPool
    cluster: Cluster
    cache: ProfileCache
    stages: Stages = field(default_factory=Stages)
    alone: bool = False

    def costs(self) -> Costs:
        measured: dict[str, Measured] = {}
        ranks, devices = range(len(self.cluster.devices)), self.cluster.devices
        mates = {rank: [rank] if self.alone else mates_of(devices, rank) for rank in ranks}
        for rank in sorted(mates, key=lambda rank: -len(mates[rank])):  # where contention shows, if anywhere
            kind = devices[rank].kind
            if kind not in measured:
                measured[kind] = self._of_kind(mates[rank], rank)
        costs = {kind: replace(each.costs, unsure=not each.steady) for kind, each in measured.items()}
        return replace(self._of_devices(costs), scratch=optimizer_scratch(self.task.optimizer))

    def _of_devices(self, costs: dict[str, DeviceCosts]) -> Costs:
        return Costs(costs, optimizer_alpha(self.task.optimizer))

    def _of_kind(self, mates: list[int], rank: int) -> Measured:
        """Kept, or measured on worker `rank` alone and then with its `mates`; kept without what is unsure.

        Once kept costs are out of date, the cache gives nothing that was kept before any more.
        """
        device, spec, task, cache = self.cluster.devices[rank], self.pool.spec, self.task, self.cache
        digest = profile_digest(
            task.graph,
            identity_of(self.pool, rank),
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
            if not self._still_true(measured, tried, rank):
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
            measured = self._measured_alone(rank)
        if len(mates) < 2:
            cache.put(digest, measured)
            return measured
        complete = self._together(measured, mates)
        cache.put(digest, complete if complete.steady else replace(measured, steady=False))
        return complete

    def _measured_alone(self, rank: int) -> Measured:
        """One worker's measurement, asked for part by part, so that it can be said how far it is."""
        what = f"measuring on {self.cluster.devices[rank].name}"
        done, parts = 0, 2 * (1 + REPEATS)
        self.stages.part(what, done, parts)
        self.pool.call_one(rank, _begin_measuring, self.task)
        while (measured := self.pool.call_one(rank, _measure_part)) is None:
            done += 1
            self.stages.part(what, done, parts := max(parts, done))
        assert isinstance(measured, Measured)
        return measured

    def _together(self, alone: Measured, mates: list[int]) -> Measured:
        """Costs with what shows only while several devices compute: copying, and the trial run's fit."""
        copying = self.pool.call(_measure_copying, mates[:2])
        costs = replace(alone.costs, copy_s_per_byte=sum(copying[rank] for rank in mates[:2]) / 2)
        trial = self._trial(mates)
        log.info("Trial run: how much do %s slow each other down?", " and ".join(trial.names))
        known = self._of_devices({trial.kind: costs})
        fit = fit_trial(trial, known, self.cluster, self.pool, self.stages)
        # 0 s: nothing was found for a message, and an instruction's overhead stands for it.
        costs = replace(costs, contention=fit.contention, message_s=fit.message_s or None)
        return replace(alone, costs=costs, steady=fit.steady)

    def _trial(self, ranks: list[int]) -> TrialRun:
        names = tuple(self.cluster.devices[rank].name for rank in ranks)
        kind, task = self.cluster.devices[ranks[0]].kind, self.task
        return TrialRun(task.graph, task.batch, task.values, task.optimizer, kind, names)

    def _still_true(self, kept: Measured, tried: list[int], rank: int) -> bool:
        """Whether a short trial run on the devices `tried` takes what kept costs say, within `FAR`; says so.

        A GPU, which may not hold the whole model, does a piece of work that is always the same instead.
        """
        device = self.cluster.devices[rank]
        if torch.device(device.torch_device).type == "cpu":
            what, known = "a trial run", self._of_devices({device.kind: kept.costs})
            said_s, took_s = checked_trial(self._trial(tried), known, self.cluster, self.pool)
        else:
            what, said_s, took_s = "a piece of work", kept.reference_s, self.pool.call_one(rank, _speed)
        off = took_s / said_s - 1 if said_s > 0 else 0.0
        ago = _ago(max(time.time() - kept.measured_at, 0.0))
        took = f"{what} takes {100 * abs(off):.0f} % {'longer' if off > 0 else 'less'} than they say"
        if abs(off) <= FAR:
            log.info("Using the costs measured on %s %s ago; %s.", device.name, ago, took)
            return True
        log.warning(
            "The costs measured on %s %s ago are out of date: %s (%.1f ms, not %.1f ms). Measuring anew.",
            device.name, ago, took, 1e3 * took_s, 1e3 * said_s,
        )  # fmt: skip
        return False


def predicted_here(graph: Graph, optimizer: OptimizerFactory, pool: WorkerPool, cluster: Cluster) -> Costs:
    """Costs of every device kind from its rates, without measuring anything of the graph.

    Raises:
        ConfigError: there are no rates of a device.
    """
    kinds = rates_by_kind(cluster.devices, graph.autocast)
    first = {device.kind: rank for rank, device in reversed(list(enumerate(cluster.devices)))}
    for kind, rates in kinds.items():
        speed = rates.reference_s / pool.call_one(first[kind], _speed) if rates.reference_s else 1.0
        log.info(
            "Predicting %d operators on %s: rates of %s, at %.2f times its speed.",
            len(graph), kind, rates.name, speed,
        )  # fmt: skip
        kinds[kind] = rates.at(speed, rates.name)
    costs = predicted_costs(graph, kinds, optimizer_alpha(optimizer))
    return replace(costs, scratch=optimizer_scratch(optimizer))


def _ago(seconds: float) -> str:
    for name, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


def _speed(worker: Worker) -> float:
    return reference_seconds(worker.torch_device)


def _begin_measuring(worker: Worker, task: Calibration) -> None:
    worker.memory[MEASURING] = _measuring(worker, task)


def _measure_part(worker: Worker) -> Measured | None:
    """What was measured, once there is no further part."""
    try:
        next(worker.memory[MEASURING])
    except StopIteration as end:
        del worker.memory[MEASURING]
        measured: Measured = end.value
        return measured
    return None


def _measuring(worker: Worker, task: Calibration) -> Generator[None, None, Measured]:
    """One device alone: its operators in two rounds, what else it does between them."""
    device = worker.torch_device
    reference = [reference_seconds(device)]
    profiler = Profiler(
        task.graph, task.batch, task.values, worker.torch_device, in_flight=task.in_flight, repeats=REPEATS
    )
    yield from profiler.walks_of_round()
    initializers = task.graph.initializers.items()
    shapes = {k: init.shape for k, init in initializers if init.is_parameter and init.requires_grad}
    step = step_seconds_per_byte(task.optimizer, shapes, device)
    adding = accumulate_seconds_per_byte(list(shapes.values()), device)
    instruction = _instruction_seconds(worker)
    yield from profiler.walks_of_round()
    yield from walks_to_settle(profiler)
    reference.append(reference_seconds(device))
    costs = DeviceCosts(
        profiler.seconds(),
        step,
        instruction,
        accumulate_s_per_byte=adding,
        host_s_per_byte=host_seconds_per_byte(device),
        transients=transient_bytes(task.graph, task.batch, task.values, device),
    )
    return Measured(costs, drift=profiler.drift, reference_s=sum(reference) / 2)


def _instruction_seconds(worker: Worker, microbatches: int = 16) -> float:
    name, graph = worker.device.name, trivial_step()
    cluster = Cluster("alone", (worker.device,), {})
    program = compile_program(graph, Placement.given({"mul": name}, {"mul": 0}), cluster, GPipe(microbatches))
    share = Share.of({"w": torch.ones(1)}, worker.torch_device, None, ["w"])
    transport = LocalTransport({name: worker.torch_device})
    executor = Executor(program, name, share, transport, worker.torch_device)
    feeds = [{"x": torch.ones(1)}] * microbatches

    def run() -> float:
        executor.run(feeds)
        return executor.recorder.ended_s - executor.recorder.began_s

    return instruction_seconds(run, len(program.instructions[name]))


def _measure_copying(worker: Worker, ends: list[int]) -> float:
    """Called on all workers; those that are not `ends` only help to make the group."""
    group = dist.new_group(ends, backend="gloo")
    seconds = 0.0
    if worker.rank in ends:
        peer = worker.devices[ends[1] if worker.rank == ends[0] else ends[0]].name
        seconds = copy_seconds_per_byte(worker.transport, peer, _barrier(group))
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.destroy_process_group(group)
    return seconds


def _barrier(group: Any) -> Callable[[], None]:
    def wait() -> None:
        dist.barrier(group)

    return wait
