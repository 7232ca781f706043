"""Measurements on a worker: operators, optimiser, instructions, speed, operators in parts, its machine.

new nodes of a plan ──► unmeasured kinds of them ──► one worker of each device kind ──► known, cached
"""

from __future__ import annotations

import logging
import platform
import socket
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import netsplit
from netsplit.cluster.catalogue import GPU_MARGIN_BYTES, Rates, rates_by_kind
from netsplit.cluster.cluster import Cluster, Device
from netsplit.cluster.local import (
    allowed_processors,
    processor_quota,
    shared_processors,
    usable_processors,
)
from netsplit.graph.ir import Graph
from netsplit.placement.placement import Placement
from netsplit.profile.costs import Costs, DeviceCosts, PartCosts
from netsplit.profile.measure.clock import (
    accumulate_seconds_per_byte,
    copy_seconds_per_byte,
    host_seconds_per_byte,
    reference_seconds,
    step_seconds_per_byte,
    trivial_step,
)
from netsplit.profile.measure.compute import Profiler, walks_to_settle
from netsplit.profile.measure.optimizer import check_element_wise, optimizer_alpha, optimizer_scratch
from netsplit.profile.measure.parts import profile_parts
from netsplit.profile.measure.predicted_bytes import transient_bytes
from netsplit.profile.measured import Measured, ProfileCache, parts_digest
from netsplit.profile.operator_keys import new_nodes, operator_key
from netsplit.profile.predict import predicted_costs
from netsplit.program.compile import compile_program
from netsplit.program.schedules import GPipe
from netsplit.rewrite.emitter import MOVES
from netsplit.rewrite.records import Rewrite
from netsplit.runtime.executor import Executor
from netsplit.runtime.share import OptimizerFactory, Share
from netsplit.runtime.transport.handle import LocalTransport
from netsplit.runtime.workers.messages import Worker
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.tracking.host import cpu_model

__all__ = [
    "REPEATS", "Calibration", "KnownParts", "MeasuredParts", "begin_measuring", "identity_of", "located",
    "mates_of", "measure_copying", "measure_part", "predicted_here", "rates_here", "speed_of", "with_room",
]  # fmt: skip


def identity_of(pool: WorkerPool, rank: int) -> dict[str, Any]:
    """What a worker's seconds depend on besides the graph."""
    return pool.call_one(rank, _identity)


def located(devices: Sequence[Device], pool: WorkerPool) -> tuple[Device, ...]:
    """The devices with the hosts and processors of workers that others started; one kind for each processor
    model."""
    models = [identity["processor"] for identity in pool.call(_identity)]
    allowed: dict[str, list[tuple[frozenset[int], float]]] = {}
    for hello, own in zip(pool.hellos, pool.call(_processors), strict=True):
        allowed.setdefault(hello.host, []).append(own)
    on_cpu = [torch.device(device.torch_device).type == "cpu" for device in devices]
    several = len({model for model, is_cpu in zip(models, on_cpu, strict=True) if is_cpu}) > 1
    return tuple(
        replace(
            device,
            host=hello.host,
            processors=shared_processors(allowed[hello.host]),
            kind=f"{device.kind} {model}" if several and is_cpu else device.kind,
        )
        for device, hello, model, is_cpu in zip(devices, pool.hellos, models, on_cpu, strict=True)
    )


def with_room(devices: Sequence[Device], pool: WorkerPool) -> tuple[Device, ...]:
    """The devices, with GPU capacities limited to the free memory less `GPU_MARGIN_BYTES`."""
    free = {name: nbytes - GPU_MARGIN_BYTES for name, nbytes in pool.free_bytes.items()}
    return tuple(
        replace(
            device,
            capacity_bytes=max(1, min(device.capacity_bytes, free.get(device.name, device.capacity_bytes))),
        )
        for device in devices
    )


def mates_of(devices: Sequence[Device], rank: int) -> list[int]:
    """Ranks of the CPU devices of the same kind and host; a GPU's own rank alone."""
    own = devices[rank]
    if torch.device(own.torch_device).type != "cpu" or own.host is None:
        return [rank]
    return [q for q, other in enumerate(devices) if (other.kind, other.host) == (own.kind, own.host)]


def _identity(worker: Worker) -> dict[str, Any]:
    return {
        "kind": worker.device.kind,
        "host": socket.gethostname(),
        "processor": cpu_model(),
        "processors": usable_processors(),
        "threads": torch.get_num_threads(),
        "neighbours": len(worker.neighbours.wires),
        "torch": torch.__version__,
        "netsplit": netsplit.__version__,
        "python": platform.python_version(),
    }


def _processors(worker: Worker) -> tuple[frozenset[int], float]:
    return allowed_processors(), processor_quota()


log = logging.getLogger(__name__)

REPEATS = 4  # timed walks over the graph in each of two rounds
RUNS = 40  # of a trivial program; the first do not count
MEASURING = "measuring"  # key of a worker's memory


@dataclass(frozen=True)
class Calibration:
    """What to measure; `batch` is one micro-batch, `in_flight` of them precede a backward."""

    graph: Graph
    batch: tuple[Tensor, ...]
    values: dict[str, Tensor]
    optimizer: OptimizerFactory
    in_flight: int = 1


def predicted_here(graph: Graph, optimizer: OptimizerFactory, pool: WorkerPool, cluster: Cluster) -> Costs:
    """Costs of every device kind from its rates, without measuring the graph."""
    kinds = rates_here(cluster.devices, graph.autocast, lambda rank: float(pool.call_one(rank, speed_of)))
    costs = predicted_costs(graph, kinds, optimizer_alpha(optimizer))
    return replace(costs, scratch=optimizer_scratch(optimizer))


def rates_here(
    devices: Sequence[Device], autocast: str | None, reference_s: Callable[[int], float]
) -> dict[str, Rates]:
    """Rates of every device kind at its speed here; `reference_s` takes a device's rank."""
    kinds = rates_by_kind(devices, autocast)
    for kind, each in kinds.items():
        rank = next(rank for rank, device in enumerate(devices) if device.kind == kind)
        speed = each.reference_s / reference_s(rank) if each.reference_s else 1.0
        log.info(
            "Predicting times on %s from the rates of %s, at %.2f times its speed.", kind, each.name, speed
        )
        kinds[kind] = each.at(speed, each.name)
    return kinds


def speed_of(worker: Worker) -> float:
    return reference_seconds(worker.torch_device)


def begin_measuring(worker: Worker, task: Calibration) -> None:
    worker.memory[MEASURING] = _measuring(worker, task)


def measure_part(worker: Worker) -> Measured | None:
    """The measurement, once all its parts are done; else None."""
    try:
        next(worker.memory[MEASURING])
    except StopIteration as end:
        del worker.memory[MEASURING]
        measured: Measured = end.value
        return measured
    return None


def _measuring(worker: Worker, task: Calibration) -> Generator[None, None, Measured]:
    """Measure one device alone: operators in two rounds, the rest in between."""
    device = worker.torch_device
    reference = [reference_seconds(device)]
    profiler = Profiler(
        task.graph, task.batch, task.values, worker.torch_device, in_flight=task.in_flight, repeats=REPEATS
    )
    yield from profiler.walks_of_round()
    initializers = task.graph.initializers.items()
    shapes = {k: init.shape for k, init in initializers if init.is_parameter and init.requires_grad}
    step = step_seconds_per_byte(task.optimizer, shapes, device)
    adding = accumulate_seconds_per_byte(shapes, device)
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
    """Seconds to begin and end one computation."""
    name, graph = worker.device.name, trivial_step()
    cluster = Cluster("alone", (worker.device,), {})
    program = compile_program(graph, Placement.given({"mul": name}, {"mul": 0}), cluster, GPipe(microbatches))
    share = Share.of({"w": torch.ones(1)}, worker.torch_device, None, ["w"])
    transport = LocalTransport({name: worker.torch_device})
    executor = Executor(program, name, share, transport, worker.torch_device)
    took = []
    for _ in range(RUNS):
        executor.run([{"x": torch.ones(1)}] * microbatches)
        took.append(executor.recorder.ended_s - executor.recorder.began_s)
    return median(took[RUNS // 4 :]) / len(program.instructions[name])


def measure_copying(worker: Worker, ends: list[int]) -> float:
    """Seconds per byte copied between `ends`; other workers only help to make the group."""
    group = dist.new_group(ends, backend="gloo")
    seconds = 0.0
    if worker.rank in ends:
        peer = worker.devices[ends[1] if worker.rank == ends[0] else ends[0]].name
        seconds = copy_seconds_per_byte(worker.transport, peer, partial(dist.barrier, group))
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.destroy_process_group(group)
    return seconds


KnownParts = dict[str, dict[str, PartCosts]]
"""Device kind -> what an operator does (`operator_key`) -> its costs."""


@dataclass(eq=False)
class MeasuredParts:
    """Measured parts of one step's operators: a `partition.base.PartsMeter`.

    `whole` are costs of its operators; `known` may be that of the same step at other sizes, too.
    """

    task: Calibration
    whole: Costs
    pool: Callable[[], WorkerPool]
    cluster: Cluster
    cache: ProfileCache
    notify: Callable[[str], object] = lambda words: None
    known: KnownParts = field(default_factory=dict)
    spent_s: float = 0.0
    _measured: set[tuple[Rewrite, ...]] = field(default_factory=set)
    _costs: Costs | None = None

    @property
    def costs(self) -> Costs:
        """Costs of the step's operators and of all parts measured so far; cached until there are more."""
        if not self._measured:
            return self.whole
        if self._costs is None:
            devices = {
                kind: replace(each, parts=dict(self.known[kind])) if kind in self.known else each
                for kind, each in self.whole.devices.items()
            }
            self._costs = replace(self.whole, devices=devices)
        return self._costs

    def measured(self, graph: Graph) -> Costs:
        """`costs`, after measuring the unknown nodes of a rewritten graph."""
        if graph.rewrites not in self._measured:
            began = time.perf_counter()
            if self._measure(graph):
                self._costs = None
            self._measured.add(graph.rewrites)
            self.spent_s += time.perf_counter() - began
        return self.costs

    def _measure(self, after: Graph) -> bool:
        """Measure the graph's unknown parts; whether `costs` lacked any."""
        check_element_wise(self.task.optimizer, after)
        before, measured = self.task.graph, False
        keys = {name: operator_key(after, after.nodes[name]) for name in new_nodes(before, after)}
        for kind, own in self.costs.devices.items():
            ranks = [rank for rank, device in enumerate(self.cluster.devices) if device.kind == kind]
            if own.rates is None and ranks and before.nodes.keys() <= own.nodes.keys():
                self._measure_on(kind, ranks[0], after, keys)
                measured |= not own.parts.keys() >= set(keys.values())
        return measured

    def _measure_on(self, kind: str, rank: int, graph: Graph, keys: dict[str, str]) -> None:
        digest = parts_digest(identity_of(self.pool(), rank), in_flight=self.task.in_flight)
        known = self.known.get(kind) or self.cache.get(digest, dict[str, PartCosts]) or {}
        names = {key: name for name, key in keys.items() if key not in known}
        more: dict[str, PartCosts] = {}
        if names:
            began, where = time.perf_counter(), self.cluster.devices[rank].name
            words = f"measuring {len(names)} split operators on {where}"
            log.info("%s", words)
            self.notify(words)
            sent, task = replace(graph, output_spec=None), self.task
            batch = tuple(tensor.clone() for tensor in task.batch)  # may be rows of a larger one
            measured = self.pool().call_one(
                rank, _measure_parts, sent, batch, task.values, sorted(names.values()), task.in_flight
            )
            more = {key: measured[name] for key, name in names.items()}
            kept = self.cache.get(digest, dict[str, PartCosts]) or {}  # others may have written meanwhile
            self.cache.put(digest, {**kept, **known, **more})
            log.info("Measured split operators in %.1f s", time.perf_counter() - began)
        self.known[kind] = {**known, **more}


def _measure_parts(
    worker: Worker,
    graph: Graph,
    batch: tuple[Tensor, ...],
    wholes: dict[str, Tensor],
    names: list[str],
    in_flight: int,
) -> dict[str, PartCosts]:
    """Measure on one worker alone; parts of parameters are copied, as in training."""
    values = {
        k: init.within(wholes) if init.region is None else init.within(wholes).contiguous().clone()
        for k, init in graph.initializers.items()
    }
    return profile_parts(graph, batch, values, names, MOVES, worker.torch_device, in_flight)
