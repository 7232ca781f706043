"""Costs of a graph on a session's workers: each device kind alone, then together.

one worker of each kind, alone      operators, optimiser, instructions        reused from disk
all CPU workers of a kind at once   contention, messages (`trial_run`)        with the rest, if it was steady

What is reused is checked by a short trial run, and measured anew where it is out of date.

Or all of it is predicted, and the devices' speed alone measured, by a piece of work that is always the same.
"""

from __future__ import annotations

import logging
import platform
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import netsplit
from netsplit.cluster.catalogue import GPU_MARGIN_BYTES, rates_by_kind
from netsplit.cluster.cluster import Cluster, Device
from netsplit.cluster.processors import (
    allowed_processors,
    processor_quota,
    shared_processors,
    usable_processors,
)
from netsplit.experiment.trial_run import FAR, Show, TrialRun, checked_trial, fit_trial, nobody_looks
from netsplit.graph.ir import Graph
from netsplit.graph.surroundings.settings import settings
from netsplit.profile.costs import Costs, DeviceCosts
from netsplit.profile.measure.clock import host_seconds_per_byte, reference_seconds
from netsplit.profile.measure.compute import Profiler, walks_to_settle
from netsplit.profile.measure.messages import copy_seconds_per_byte, instruction_seconds, trivial_step
from netsplit.profile.measure.optimizer import (
    accumulate_seconds_per_byte,
    describe_optimizer,
    optimizer_alpha,
    step_seconds_per_byte,
)
from netsplit.profile.measure.predicted_bytes import transient_bytes
from netsplit.profile.measure.step_scratch import optimizer_scratch
from netsplit.profile.measured import Measured, ProfileCache, profile_digest
from netsplit.profile.predict import predicted_costs
from netsplit.program.compile import compile_program
from netsplit.program.schedules import GPipe
from netsplit.runtime.executor import Executor
from netsplit.runtime.share import OptimizerFactory, Share
from netsplit.runtime.transport.local import LocalTransport
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker

__all__ = ["Calibration", "calibrate", "identity_of", "located", "mates_of", "predicted_here", "with_room"]

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

    @classmethod
    def of(
        cls,
        graph: Graph,
        batch: tuple[Tensor, ...],
        values: Mapping[str, Tensor],
        optimizer: OptimizerFactory,
        in_flight: int = 1,
    ) -> Calibration:
        """With what may be sent to workers: no gradients, and no classes of the user's own."""
        own = {k: values[k].detach() for k in graph.initializers}
        return cls(replace(graph, output_spec=None), batch, own, optimizer, in_flight)


def calibrate(
    task: Calibration,
    pool: WorkerPool,
    cluster: Cluster,
    cache: ProfileCache,
    show: Show = nobody_looks,
    alone: bool = False,
) -> Costs:
    """Costs of every device kind: kept ones where nothing has changed, else measured now.

    Args:
        alone: of one device of each kind, without a trial run of several.
    """
    measured: dict[str, Measured] = {}
    ranks = range(len(cluster.devices))
    mates = {rank: [rank] if alone else mates_of(cluster.devices, rank) for rank in ranks}
    for rank in sorted(mates, key=lambda rank: -len(mates[rank])):  # where contention shows, if anywhere
        kind = cluster.devices[rank].kind
        if kind not in measured:
            measured[kind] = _of_kind(task, pool, cluster, cache, mates[rank], rank, show)
    costs = {kind: replace(each.costs, unsure=not each.steady) for kind, each in measured.items()}
    return Costs(costs, optimizer_alpha(task.optimizer), scratch=optimizer_scratch(task.optimizer))


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


def _of_kind(
    task: Calibration,
    pool: WorkerPool,
    cluster: Cluster,
    cache: ProfileCache,
    mates: list[int],
    rank: int,
    show: Show,
) -> Measured:
    """Kept, or measured on the worker `rank` alone and then with its `mates`; kept without what is unsure.

    Once kept costs are out of date, the cache gives nothing that was kept before any more.
    """
    device, spec = cluster.devices[rank], pool.spec
    digest = profile_digest(
        task.graph,
        identity_of(pool, rank),
        settings=settings(),
        optimizer=describe_optimizer(task.optimizer),
        in_flight=task.in_flight,
        mates=len(mates),
        processors=device.processors,
        links=None if spec.bandwidth is None else (spec.latency_s, spec.bandwidth),
    )
    kept = cache.get(digest, task.graph.nodes)
    measured, age_s = kept if kept is not None else (None, 0.0)
    if measured is not None and not measured.steady and digest in cache.unsure:
        log.info(
            "Using the costs measured on %s %s ago. The slow-down between workers stays as an earlier job "
            "of this command measured it, uncertain.",
            device.name, _ago(age_s),
        )  # fmt: skip
        return cache.unsure[digest]
    if measured is not None and not _still_true(
        task, pool, cluster, measured, age_s, mates if measured.steady else [rank], rank
    ):
        measured, age_s, cache.refresh = None, 0.0, True
    if measured is not None and measured.steady:
        return measured
    if measured is not None:
        log.info("Measuring the slow-down between workers again: the last result was uncertain.")
    if measured is None:
        size = task.graph.batch_size
        log.info("Measuring %d operators on %s, %d samples at a time.", len(task.graph), device.name, size)
        measured = _measured_alone(task, pool, rank, f"measuring on {device.name}", show)
    if len(mates) < 2:
        cache.put(digest, measured)
        return measured
    costs, steady = _together(measured.costs, task, pool, cluster, mates, show)
    complete = replace(measured, costs=costs, steady=steady)
    cache.put(digest, complete if steady else replace(measured, steady=False), age_s)
    if not steady and cache.folder is not None:
        cache.unsure[digest] = complete
    return complete


def identity_of(pool: WorkerPool, rank: int) -> dict[str, Any]:
    """What a worker's seconds depend on beside what it computes."""
    return pool.call_one(rank, _identity)


def located(devices: Sequence[Device], pool: WorkerPool) -> tuple[Device, ...]:
    """The devices with the hosts that their workers name, and the processors that those of a host may use; a
    kind for each processor model where they differ.

    For workers that were started elsewhere: what the controller's machine is says nothing of theirs.
    """
    models = [said["processor"] for said in pool.call(_identity)]
    allowed: dict[str, list[tuple[frozenset[int], float]]] = {}
    for hello, own in zip(pool.hellos, pool.call(_processors), strict=True):
        allowed.setdefault(hello.host, []).append(own)
    on_cpu = [torch.device(device.torch_device).type == "cpu" for device in devices]
    several = len({model for model, here in zip(models, on_cpu, strict=True) if here}) > 1
    return tuple(
        replace(
            device,
            host=hello.host,
            processors=shared_processors(allowed[hello.host]),
            kind=f"{device.kind} {model}" if several and here else device.kind,
        )
        for device, hello, model, here in zip(devices, pool.hellos, models, on_cpu, strict=True)
    )


def with_room(devices: Sequence[Device], pool: WorkerPool) -> tuple[Device, ...]:
    """The devices; GPUs with no more capacity than their workers found free, less `GPU_MARGIN_BYTES`."""
    free = {name: gpu.free_bytes - GPU_MARGIN_BYTES for name, gpu in pool.gpus.items()}
    return tuple(
        replace(
            device,
            capacity_bytes=max(1, min(device.capacity_bytes, free.get(device.name, device.capacity_bytes))),
        )
        for device in devices
    )


def mates_of(devices: Sequence[Device], rank: int) -> list[int]:
    """Ranks of the CPU devices of one kind and host; a GPU shares nothing that is measured here."""
    own = devices[rank]
    if torch.device(own.torch_device).type != "cpu" or own.host is None:
        return [rank]
    return [q for q, other in enumerate(devices) if (other.kind, other.host) == (own.kind, own.host)]


def _together(
    alone: DeviceCosts, task: Calibration, pool: WorkerPool, cluster: Cluster, mates: list[int], show: Show
) -> tuple[DeviceCosts, bool]:
    """With what shows only while several devices of a host compute: copying, and the trial run's fit; and
    whether that was steady."""
    copying = pool.call(_measure_copying, mates[:2])
    costs = replace(alone, copy_s_per_byte=sum(copying[rank] for rank in mates[:2]) / 2)
    trial = _trial(task, cluster, mates)
    log.info("Trial run: how much do %s slow each other down?", " and ".join(trial.names))
    fit = fit_trial(trial, Costs({trial.kind: costs}, optimizer_alpha(task.optimizer)), cluster, pool, show)
    # 0 s: nothing was found for a message, and an instruction's overhead stands for it.
    return replace(costs, contention=fit.contention, message_s=fit.message_s or None), fit.steady


def _trial(task: Calibration, cluster: Cluster, ranks: list[int]) -> TrialRun:
    names = tuple(cluster.devices[rank].name for rank in ranks)
    kind = cluster.devices[ranks[0]].kind
    return TrialRun(task.graph, task.batch, task.values, task.optimizer, kind, names)


def _still_true(
    task: Calibration,
    pool: WorkerPool,
    cluster: Cluster,
    kept: Measured,
    age_s: float,
    tried: list[int],
    rank: int,
) -> bool:
    """Whether a short trial run on the devices `tried` takes what kept costs say, within `FAR`; says so.

    A GPU, which may not hold the whole model, does a piece of work that is always the same instead.
    """
    device = cluster.devices[rank]
    if torch.device(device.torch_device).type == "cpu":
        what, trial = "a trial run", _trial(task, cluster, tried)
        costs = Costs({device.kind: kept.costs}, optimizer_alpha(task.optimizer))
        said_s, took_s = checked_trial(trial, costs, cluster, pool)
    else:
        what, said_s, took_s = "a piece of work", kept.reference_s, pool.call_one(rank, _speed)
    off = took_s / said_s - 1 if said_s > 0 else 0.0
    took = f"{what} takes {100 * abs(off):.0f} % {'longer' if off > 0 else 'less'} than they say"
    if abs(off) <= FAR:
        log.info("Using the costs measured on %s %s ago; %s.", device.name, _ago(age_s), took)
        return True
    log.warning(
        "The costs measured on %s %s ago are out of date: %s (%.1f ms, not %.1f ms). Measuring anew.",
        device.name, _ago(age_s), took, 1e3 * took_s, 1e3 * said_s,
    )  # fmt: skip
    return False


def _ago(seconds: float) -> str:
    for name, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


def _identity(worker: Worker) -> dict[str, Any]:
    """What a worker's seconds depend on beside the graph."""
    return {
        "kind": worker.device.kind,
        "host": socket.gethostname(),
        "processor": _processor(),
        "processors": usable_processors(),
        "threads": torch.get_num_threads(),
        "neighbours": len(worker.neighbours.wires),
        "torch": torch.__version__,
        "netsplit": netsplit.__version__,
        "python": platform.python_version(),
    }


def _processors(worker: Worker) -> tuple[frozenset[int], float]:
    return allowed_processors(), processor_quota()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()


def _speed(worker: Worker) -> float:
    return reference_seconds(worker.torch_device)


def _profiler(worker: Worker, task: Calibration) -> Profiler:
    return Profiler(
        task.graph, task.batch, task.values, worker.torch_device, in_flight=task.in_flight, repeats=REPEATS
    )


def _measured_alone(task: Calibration, pool: WorkerPool, rank: int, what: str, show: Show) -> Measured:
    """One worker's measurement, asked for part by part, so that it can be said how far it is."""
    done, parts = 0, 2 * (1 + REPEATS)
    show(what, done, parts)
    pool.call_one(rank, _begin_measuring, task)
    while (measured := pool.call_one(rank, _measure_part)) is None:
        done += 1
        show(what, done, parts := max(parts, done))
    assert isinstance(measured, Measured)
    return measured


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
    profiler = _profiler(worker, task)
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
    program = compile_program(graph, {"mul": name}, {"mul": 0}, cluster, GPipe(microbatches))
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
