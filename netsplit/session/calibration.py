"""What a worker measures of a training step: its operators, its optimiser, its instructions, its speed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from netsplit.cluster.catalogue import Rates, rates_by_kind
from netsplit.cluster.cluster import Cluster, Device
from netsplit.graph.ir import Graph
from netsplit.placement.placement import Placement
from netsplit.profile.costs import Costs, DeviceCosts
from netsplit.profile.measure.clock import host_seconds_per_byte, reference_seconds
from netsplit.profile.measure.compute import Profiler, walks_to_settle
from netsplit.profile.measure.messages import copy_seconds_per_byte, instruction_seconds, trivial_step
from netsplit.profile.measure.optimizer import (
    accumulate_seconds_per_byte,
    optimizer_alpha,
    step_seconds_per_byte,
)
from netsplit.profile.measure.predicted_bytes import transient_bytes
from netsplit.profile.measure.step_scratch import optimizer_scratch
from netsplit.profile.measured import Measured
from netsplit.profile.predict import predicted_costs
from netsplit.program.compile import compile_program
from netsplit.program.schedules import GPipe
from netsplit.runtime.executor import Executor
from netsplit.runtime.share import OptimizerFactory, Share
from netsplit.runtime.transport.local import LocalTransport
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker

__all__ = [
    "REPEATS", "Calibration", "begin_measuring", "measure_copying", "measure_part", "predicted_here",
    "rates_here", "speed_of",
]  # fmt: skip

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


def predicted_here(graph: Graph, optimizer: OptimizerFactory, pool: WorkerPool, cluster: Cluster) -> Costs:
    """Costs of every device kind from its rates, without measuring anything of the graph.

    Raises:
        ConfigError: there are no rates of a device.
    """
    kinds = rates_here(cluster.devices, graph.autocast, lambda rank: float(pool.call_one(rank, speed_of)))
    costs = predicted_costs(graph, kinds, optimizer_alpha(optimizer))
    return replace(costs, scratch=optimizer_scratch(optimizer))


def rates_here(
    devices: Sequence[Device], autocast: str | None, reference_s: Callable[[int], float]
) -> dict[str, Rates]:
    """Rates of every device kind at the speed that it has here.

    Args:
        reference_s: `reference_seconds` of a device, by its rank.

    Raises:
        ConfigError: there are no rates of a device.
    """
    kinds = rates_by_kind(devices, autocast)
    for kind, each in kinds.items():
        rank = next(rank for rank, device in enumerate(devices) if device.kind == kind)
        speed = each.reference_s / reference_s(rank) if each.reference_s else 1.0
        log.info("Predicting seconds on %s: rates of %s, at %.2f times its speed.", kind, each.name, speed)
        kinds[kind] = each.at(speed, each.name)
    return kinds


def speed_of(worker: Worker) -> float:
    return reference_seconds(worker.torch_device)


def begin_measuring(worker: Worker, task: Calibration) -> None:
    worker.memory[MEASURING] = _measuring(worker, task)


def measure_part(worker: Worker) -> Measured | None:
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


def measure_copying(worker: Worker, ends: list[int]) -> float:
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
