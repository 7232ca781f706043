"""The rooms strung together: workers, capture, costs, links, decision, program, runtime.

Session(cluster) ──study──► Study ──plan──► Plan ──deploy──► ParallelModel
 workers, links             graph, costs    placement,       trains, evaluates,
                                            program,         saves
                                            prediction
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from netsplit.calibration import Calibration, calibrate, located
from netsplit.cluster.cluster import Cluster, Link
from netsplit.cluster.local import ClusterSpec
from netsplit.cluster.probe import fit_link, probe_links
from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph
from netsplit.graph.module import initial_values
from netsplit.graph.onnx.write import NodeNotes, write_node_data, write_onnx
from netsplit.graph.step import as_tuple, capture, capture_inference
from netsplit.parallel import ParallelModel
from netsplit.partition.base import Partitioner, Placement, Problem
from netsplit.profile.costs import Costs
from netsplit.profile.measured import ProfileCache
from netsplit.profile.memory import static_bytes
from netsplit.program.compile import compile_program
from netsplit.program.inference import inference_placement
from netsplit.program.instructions import Program
from netsplit.program.resize import with_tail
from netsplit.program.schedules import Schedule
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.pool import WorkerPool
from netsplit.runtime.share import OptimizerFactory, UpdateRule
from netsplit.runtime.worker import Worker
from netsplit.simulate.simulate import simulate
from netsplit.simulate.timeline import Timeline
from netsplit.workload import Workload

__all__ = ["Plan", "Session", "Study"]

log = logging.getLogger(__name__)

LinkSamples = dict[tuple[str, str], list[tuple[int, float]]]


@dataclass(frozen=True)
class Study:
    """What is known of a model on a cluster before anything is decided."""

    model: nn.Module
    graph: Graph  # of the training step, at the micro-batch size
    inference: Graph  # the training step's own where nothing will be deployed
    values: dict[str, Tensor]  # initializers; the model's own tensors
    costs: Costs
    cluster: Cluster
    schedule: Schedule
    optimizer: OptimizerFactory
    loss: Callable[..., Tensor]
    rule: UpdateRule = field(default_factory=UpdateRule)

    @property
    def workload(self) -> Workload:
        """The graph with its measured costs, on this cluster: what `runners.partition` plans from a file."""
        return Workload(type(self.model).__name__, self.graph, self.costs, self.cluster)

    def problem(self, seed: int = 0) -> Problem:
        """The least simulated iteration of the schedule, with its micro-batches."""
        return self.workload.problem(objective="simulated", schedule=self.schedule, seed=seed)

    def plan(self, partitioner: Partitioner, seed: int = 0) -> Plan:
        """Decide, compile and simulate.

        Raises:
            InfeasibleError: the method finds no placement within the capacities.
        """
        placement = partitioner.partition(self.problem(seed))
        log.info("%s: %s", placement.method, placement.report.summary())
        program = self._program(placement)
        predicted = simulate(program, self.cluster, self.costs)
        if partitioner.respects_capacity:
            _warn_of_overflow(placement.method, predicted, self.cluster)
        return Plan(self, placement, program, predicted)

    def _program(self, placement: Placement, microbatches: int | None = None) -> Program:
        schedule = self.schedule
        return compile_program(
            self.graph,
            placement.device_of,
            placement.priority,
            self.cluster,
            schedule if microbatches is None else schedule.with_microbatches(microbatches),
            replicas=placement.replicas,
            shared_norm=self.rule.shared_norm,
        )

    def resized(self, placement: Placement, inputs: Any, targets: Any) -> Program:
        """The training program for a batch of fewer samples: whole micro-batches, and one with the rest.

        Raises:
            NetSplitError: the model computes something else with the rest's number of samples.
        """
        inputs, targets = as_tuple(inputs), as_tuple(targets)
        full, rest = divmod(len(inputs[0]), self.graph.batch_size)
        program = self._program(placement, full + bool(rest))
        if not rest:
            return program
        log.info("capturing the model for a micro-batch of %d samples", rest)
        example = tuple(t[:rest].clone() for t in inputs), tuple(t[:rest].clone() for t in targets)
        kind = torch.device(self.cluster.devices[0].torch_device).type
        tail = capture(self.model, self.loss, example, autocast=self.graph.autocast, device_type=kind)
        return with_tail(program, self.graph, tail)


@dataclass(frozen=True)
class Plan:
    """A decision, compiled, with what the simulator expects of it."""

    study: Study
    placement: Placement
    program: Program
    predicted: Timeline

    @cached_property
    def inference(self) -> Program:
        """Evaluation, with every node on the device of its like in training."""
        study, graph = self.study, self.study.inference
        where = inference_placement(study.graph, graph, self.placement.device_of)
        return compile_program(graph, where, graph.position, study.cluster, study.schedule, training=False)

    @cached_property
    def nodes(self) -> dict[str, int]:
        """Device -> operators that it computes; each replica computes all of its stage."""
        return self._on_replicas(Counter(self.placement.device_of.values()))

    @cached_property
    def static_bytes(self) -> dict[str, int]:
        """Device -> bytes as the partitioners count them (5-18); of a replica, those of its stage."""
        study = self.study
        found = static_bytes(
            study.graph,
            self.placement.device_of,
            study.costs.alpha,
            study.costs.copies(study.schedule.in_flight(len(study.cluster.devices))),
        )
        return self._on_replicas(found)

    def _on_replicas(self, found: Mapping[str, int]) -> dict[str, int]:
        """What is known of the first replica of each stage, of the others too."""
        replicas = self.placement.replicas
        return {each: value for home, value in found.items() for each in replicas.get(home, (home,))}

    def write_onnx(self, path: str | Path, node_data: str | Path | None = None) -> None:
        """Write the placed graph as an ONNX file for Netron, and devices as node data for Model Explorer.

        Metadata of a node: its device (of a replicated stage the first), seconds there, and bytes. Errors as
        of `netsplit.graph.onnx.write_onnx`.
        """
        cluster, seconds = self.study.cluster, self.study.costs.seconds
        device = self.placement.device_of
        known = {name: seconds[cluster.device(place).kind][name] for name, place in device.items()}
        notes = NodeNotes(
            device,
            {name: each.forward_s for name, each in known.items()},
            {name: each.backward_s for name, each in known.items()},
        )
        write_onnx(self.study.graph, path, notes)
        if node_data is not None:
            write_node_data(self.study.graph, node_data, notes)

    def summary(self) -> str:
        """The decision in words: per device operators, seconds and bytes; cut edges; what is predicted."""
        study, program = self.study, self.program
        seconds = f"{1e3 * self.predicted.iteration_s:.1f} ms an iteration"
        size = study.graph.batch_size
        lines = [
            f"{self.placement.method}: {self.placement.report.summary()}",
            f"{study.schedule.name} with {program.microbatches} micro-batches of {size} samples",
            f"predicted: {seconds}, {program.transfers} transfers",
        ]
        for device in study.cluster.devices:
            held = self.nodes.get(device.name, 0)
            busy = self.predicted.busy_s(device.name)
            peak, static = (
                each.get(device.name, 0) for each in (self.predicted.peak_bytes, self.static_bytes)
            )
            lines.append(
                f"  {device.name}: {held} operators, {1e3 * busy:.1f} ms busy, peak "
                f"{peak / 2**20:.1f} MiB (static {static / 2**20:.1f}) of {device.capacity_bytes / 2**20:.1f}"
            )
        return "\n".join(lines)


@dataclass
class Session:
    """Workers for a cluster, and the links measured between them.

    Args:
        spec: the cluster; its links are probed unless it states them.
        folder: for logs of the workers.
        profile_cache: where measured costs are kept and looked for; None: nowhere.
        refresh: measure although costs are kept, and keep the new ones.
    """

    spec: ClusterSpec
    folder: Path
    temporary: bool = False  # remove the folder at the end, unless workers failed
    profile_cache: Path | None = None
    refresh: bool = False
    link_samples: LinkSamples = field(default_factory=dict)
    _pool: WorkerPool | None = None
    _cluster: Cluster | None = None

    @property
    def pool(self) -> WorkerPool:
        """The workers; started at first use, and again after a failure."""
        if self._pool is None or not self._pool.connections:
            if not self.spec.external:
                log.info("starting %d workers for cluster '%s'", len(self.spec.devices), self.spec.name)
            self._pool = WorkerPool(self.spec, self.folder)
        return self._pool

    @property
    def cluster(self) -> Cluster:
        """The devices with their links, probed between the workers once."""
        if self._cluster is None:
            names = [device.name for device in self.spec.devices]
            pairs = [(p, q) for p in names for q in names if p != q]
            if self.spec.bandwidth is not None:
                given = Link(self.spec.latency_s or 0.0, 1.0 / self.spec.bandwidth)
                links = dict.fromkeys(pairs, given)
            else:
                log.info("probing %d links", len(pairs))
                self.link_samples = self.pool.call(_probe)[0]
                links = {pair: fit_link(samples) for pair, samples in self.link_samples.items()}
            devices = located(self.spec.devices, self.pool) if self.spec.external else self.spec.devices
            self._cluster = Cluster(self.spec.name, devices, links)
        return self._cluster

    def study(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        batch: tuple[Any, Any],
        schedule: Schedule,
        optimizer: OptimizerFactory,
        clip_norm: float | None = None,
        autocast: str | None = None,
    ) -> Study:
        """Capture the training step, measure its operators on a worker of each device kind.

        Args:
            batch: one whole example batch `(inputs, targets)`; cut into micro-batches here.
            clip_norm: the gradients' norm over all devices is cut to this before a step.
            autocast: "bfloat16" or "float16" for ``torch.autocast``; float16 brings a loss scale.

        Raises:
            CaptureError: the model cannot be captured.
            ConfigError: the batch does not divide into the schedule's micro-batches.
        """
        inputs, targets = as_tuple(batch[0]), as_tuple(batch[1])
        size = schedule.microbatch_size(len(inputs[0]))
        inputs, targets = (tuple(t[:size].clone() for t in part) for part in (inputs, targets))
        device_type = _device_type(self.spec, autocast)
        log.info("capturing %s at micro-batches of %d", type(model).__name__, size)
        graph = capture(model, loss, (inputs, targets), autocast=autocast, device_type=device_type)
        inference = capture_inference(model, inputs, autocast=autocast, device_type=device_type)
        values = initial_values(model, inference) | initial_values(model, graph, loss)
        log.info("captured %d operators, %d variables", len(graph), len(graph.variables))
        in_flight = schedule.in_flight(len(self.spec.devices))
        costs = self._costs(graph, inputs + targets, values, optimizer, in_flight)
        rule = UpdateRule(clip_norm, loss_scaling=autocast == "float16")
        return Study(model, graph, inference, values, costs, self.cluster, schedule, optimizer, loss, rule)

    def deploy(self, plan: Plan, owned: bool = False, seed: int = 0) -> ParallelModel:
        """Put a plan's parameters on the workers, ready to train from the model's present values.

        With `owned`, closing the result closes this session too. `seed` is of random operators.
        """
        study = plan.study
        values = {k: tensor.detach() for k, tensor in study.values.items()}
        runtime = DistributedRuntime(
            plan.program,
            self.pool,
            values,
            study.optimizer,
            plan.inference,
            study.rule,
            partial(study.resized, plan.placement),
            seed,
        )
        return ParallelModel(
            study.model, study.graph, runtime, plan.summary(), on_close=self.close if owned else None
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        if self.temporary and not (self._pool is not None and self._pool.failed):
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _costs(
        self,
        graph: Graph,
        batch: tuple[Tensor, ...],
        values: dict[str, Tensor],
        optimizer: OptimizerFactory,
        in_flight: int = 1,
    ) -> Costs:
        """As kept in `profile_cache` where nothing has changed, else measured on the workers."""
        copies = {k: values[k].detach() for k in graph.initializers}
        task = Calibration(graph, batch, copies, optimizer, in_flight)
        cache = ProfileCache(self.profile_cache, self.refresh)
        return calibrate(task, self.pool, self.cluster, cache)


def _device_type(spec: ClusterSpec, autocast: str | None) -> str:
    """The kind of all devices; under autocast they must be of one, as what is cast differs."""
    kinds = sorted({torch.device(device.torch_device).type for device in spec.devices})
    if autocast is not None and len(kinds) > 1:
        raise ConfigError(
            f"autocast is {autocast}, and cluster '{spec.name}' mixes {' and '.join(kinds)}, which cast "
            "other operators: leave it out, or take devices of one kind."
        )
    return kinds[0]


def _warn_of_overflow(method: str, predicted: Timeline, cluster: Cluster) -> None:
    for device in cluster.devices:
        over = predicted.peak_bytes.get(device.name, 0) - device.capacity_bytes
        if over > 0:
            log.warning(
                "%s: %s is predicted to need %.1f MiB more than its capacity at its peak, though the static "
                "count fits", method, device.name, over / 2**20,
            )  # fmt: skip


def _probe(worker: Worker) -> LinkSamples:
    return probe_links(worker.rank, [device.name for device in worker.devices], worker.torch_device)
