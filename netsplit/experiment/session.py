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
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from netsplit.cluster.cluster import Cluster, Link
from netsplit.cluster.local import ClusterSpec
from netsplit.cluster.probe import fit_link, probe_links
from netsplit.errors import ConfigError
from netsplit.experiment.calibration import Calibration, calibrate, located
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.ir import Graph
from netsplit.graph.module import initial_values
from netsplit.graph.onnx.write import NodeNotes, write_node_data, write_onnx
from netsplit.optim.learning_rate import LearningRate
from netsplit.optim.optimizers import for_model
from netsplit.partition.base import Partitioner, Placement, Problem
from netsplit.planning.workload import Simulated, Workload
from netsplit.profile.costs import Costs
from netsplit.profile.measured import ProfileCache
from netsplit.profile.memory import static_bytes
from netsplit.program.instructions import Program
from netsplit.program.schedules import Schedule
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.share import OptimizerFactory, UpdateRule
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker
from netsplit.simulate.simulate import simulate
from netsplit.simulate.timeline import Timeline
from netsplit.training.captures import MAX_PROGRAMS, Captures, checked_capture
from netsplit.training.parallel import ParallelModel
from netsplit.training.programs import Programs

__all__ = ["Plan", "Session", "Study"]

log = logging.getLogger(__name__)

LinkSamples = dict[tuple[str, str], list[tuple[int, float]]]


@dataclass(frozen=True)
class Study:
    """What is known of a model on a cluster before anything is decided."""

    model: nn.Module
    graph: Graph  # of the training step, at the micro-batch size
    values: dict[str, Tensor]  # initializers; the model's own tensors
    costs: Costs
    cluster: Cluster
    schedule: Schedule
    optimizer: OptimizerFactory
    loss: Loss | None
    rule: UpdateRule = field(default_factory=UpdateRule)
    tail: Graph | None = None  # at the size of the last micro-batch, where that is smaller
    key: Hashable = None  # of batches with the shapes of the graph; None: all have them
    known: dict[Hashable, tuple[int | None, ...]] = field(default_factory=dict)  # see `Batch.of`
    max_programs: int = MAX_PROGRAMS
    check: bool = True  # of every training graph against plain PyTorch

    @cached_property
    def captures(self) -> Captures:
        """Graphs of the model on other batches, and of its evaluation."""
        kind = torch.device(self.cluster.devices[0].torch_device).type
        return Captures(self.model, self.loss, self.graph.autocast, kind, self.max_programs, self.check)

    @property
    def compiler(self) -> Simulated:
        """Programs of a whole batch, and what they take."""
        return Simulated(
            self.graph,
            self.cluster,
            self.costs,
            self.schedule,
            shared_norm=self.rule.shared_norm,
            tail=self.tail,
        )

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
        program = self.compiler.program(placement)
        predicted = simulate(program, self.cluster, self.costs)
        if partitioner.respects_capacity:
            _warn_of_overflow(placement.method, predicted, self.cluster)
        return Plan(self, placement, program, predicted)

    def programs(self, placement: Placement, program: Program) -> Programs:
        """Of batches of any shapes and sizes; `program` is that of a whole batch."""
        return Programs(self.compiler, placement, program, self.captures, self.key, self.known)


@dataclass(frozen=True)
class Plan:
    """A decision, compiled, with what the simulator expects of it."""

    study: Study
    placement: Placement
    program: Program
    predicted: Timeline

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
            self._pool.call(_set_default_dtype, str(torch.get_default_dtype()).removeprefix("torch."))
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
        loss: Loss | None,
        batch: tuple[Any, Any],
        schedule: Schedule,
        optimizer: OptimizerFactory,
        clip_norm: float | None = None,
        autocast: str | None = None,
        learning_rate: LearningRate | None = None,
        ema_decay: float | None = None,
        max_programs: int = MAX_PROGRAMS,
        check: bool = True,
    ) -> Study:
        """Capture the training step, measure its operators on a worker of each device kind.

        Args:
            batch: one whole example batch `(inputs, targets)`; cut into micro-batches here.
            clip_norm: the gradients' norm over all devices is cut to this before a step.
            autocast: "bfloat16" or "float16" for ``torch.autocast``; float16 brings a loss scale.
            learning_rate: how it changes while training goes on.
            ema_decay: of moving averages of the parameters; None: there are none.
            max_programs: kinds of batches that training may see, and that prediction may.
            check: run what is captured beside plain PyTorch, and refuse what differs (see `graph.check`).

        Raises:
            CaptureError: the model cannot be captured, or would train something else.
            ConfigError: a batch that cannot be cut, or no room for any program.
            NetSplitError: the model has other operators on a smaller last micro-batch.
        """
        if max_programs < 1:
            raise ConfigError(f"max_programs is {max_programs}: give at least 1.")
        known: dict[Hashable, tuple[int | None, ...]] = {}
        whole = Batch.of(*batch, known=known)
        size, schedule = schedule.microbatch_size(whole.samples), schedule.for_batch(whole.samples)
        example = whole.rows(0, size).own()
        options: dict[str, Any] = {"autocast": autocast, "device_type": _device_type(self.spec, autocast)}
        log.info("capturing %s at micro-batches of %d", type(model).__name__, size)
        if any(p.grad is not None for p in model.parameters()):
            log.warning(
                "parameters of %s hold gradients already: the split model begins without them",
                type(model).__name__,
            )
        graph = checked_capture(model, loss, example, check, **options)
        log.info("captured %d operators, %d variables", len(graph), len(graph.variables))
        rest = whole.rows(whole.samples - whole.samples % size, whole.samples)
        tail = checked_capture(model, loss, rest.own(), check, **options) if rest.samples else None
        values = initial_values(model, graph, loss)
        in_flight = schedule.in_flight(len(self.spec.devices))
        optimizer = for_model(optimizer, model, loss)
        costs = self._costs(graph, example.tensors, values, optimizer, in_flight)
        rule = UpdateRule(clip_norm, autocast == "float16", learning_rate, ema_decay)
        costs = replace(costs, alpha=costs.alpha + (ema_decay is not None))
        return Study(
            model, graph, values, costs, self.cluster, schedule, optimizer, loss, rule, tail, whole.key,
            known, max_programs, check,
        )  # fmt: skip

    def deploy(self, plan: Plan, owned: bool = False, seed: int = 0) -> ParallelModel:
        """Put a plan's parameters on the workers, ready to train from the model's present values.

        With `owned`, closing the result closes this session too. `seed` is of random operators.
        """
        study = plan.study
        programs = study.programs(plan.placement, plan.program)
        values = {k: tensor.detach() for k, tensor in (_tensors(study) | study.values).items()}
        runtime = DistributedRuntime(
            plan.program, self.pool, values, study.optimizer, study.rule, programs.training, seed
        )
        return ParallelModel(
            study.model, study.graph, runtime, programs, plan.summary(), self.close if owned else None
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
        task = Calibration(replace(graph, output_spec=None), batch, copies, optimizer, in_flight)
        cache = ProfileCache(self.profile_cache, self.refresh)
        return calibrate(task, self.pool, self.cluster, cache)


def _tensors(study: Study) -> dict[str, Tensor]:
    """All that the model and a loss module have, under the names that graphs give them."""
    found: dict[str, Tensor] = {}
    for prefix, module in (("loss.", study.loss), ("", study.model)):
        if isinstance(module, torch.nn.Module):
            found |= {prefix + k: v for k, v in module.named_parameters(remove_duplicate=False)}
            found |= {prefix + k: v for k, v in module.named_buffers(remove_duplicate=False)}
    return found


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


def _set_default_dtype(worker: Worker, name: str) -> None:
    """As it is here: operators that make tensors go by it."""
    torch.set_default_dtype(getattr(torch, name))


def _probe(worker: Worker) -> LinkSamples:
    return probe_links(worker.rank, [device.name for device in worker.devices], worker.torch_device)
