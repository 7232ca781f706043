"""The rooms strung together: workers, capture, costs, links, decision, program, runtime.

Session(cluster) ──planner──► Planner ──plan──► Plan ──deploy──► ParallelModel
 workers, links               graph, costs      verified         trains, evaluates, saves
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from netsplit.cluster.catalogue import rates_by_kind
from netsplit.cluster.cluster import Cluster, Link, nics_of
from netsplit.cluster.local import ClusterSpec
from netsplit.cluster.probe import fit_link, probe_links
from netsplit.config import OffloadName, OnNonFinite, ProfileMode, check_numbers
from netsplit.errors import ConfigError
from netsplit.experiment.calibration import Calibration, calibrate, located, predicted_here
from netsplit.experiment.parts.measured_parts import KnownParts, MeasuredParts
from netsplit.experiment.planner import Planner
from netsplit.experiment.stages import Stages
from netsplit.experiment.trial_run import Show, nobody_looks
from netsplit.experiment.whole.cutting import RightCuts
from netsplit.experiment.whole.in_turn import SizeSeconds, measured_in_turn
from netsplit.experiment.whole.sizes import Sizes
from netsplit.graph.autocast import refuse_surrounding
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.cutting import check_cutting
from netsplit.graph.checks.replicated import check_replicas
from netsplit.graph.ir import Graph
from netsplit.graph.module import initial_values
from netsplit.interrupts import interrupts_held
from netsplit.optim.learning_rate import LearningRate
from netsplit.optim.optimizers import for_model
from netsplit.partition import Auto
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.plan import Plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.whole_plan import WholePlan, decide_whole
from netsplit.profile.costs import Costs, Offload
from netsplit.profile.measure.optimizer import check_idle
from netsplit.profile.measure.stretches.in_turn import SizedStep
from netsplit.profile.measured import Measured, ProfileCache, default_folder
from netsplit.profile.offload import offloaded
from netsplit.program.schedules import GPipe, OneFOneB, Schedule
from netsplit.runtime.checkpoint.weights import WeightSource, weight_source_of
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.offload.moments import check_buckets
from netsplit.runtime.share import OptimizerFactory, UpdateRule
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.tell import tell
from netsplit.runtime.workers.worker import Worker
from netsplit.training.adapt.adaptation import Adapt, Adaptation
from netsplit.training.adapt.switchable import require_adaptable
from netsplit.training.captures import MAX_PROGRAMS, checked_capture
from netsplit.training.parallel import ParallelModel

__all__ = ["Session"]

log = logging.getLogger(__name__)

_UNSURE: dict[str, Measured] = {}  # of all sessions of this process, as those of a sweep's jobs
LinkSamples = dict[tuple[str, str], list[tuple[int, float]]]


@dataclass
class Session:
    """Workers for a cluster, and the links measured between them.

    Args:
        spec: the cluster; its links are probed unless it states them.
        folder: for logs of the workers.
        profile: reuse: costs are kept, and kept ones taken; refresh: measured anew and kept; off: measured;
            predicted: from the graph, by the rates of the kinds of devices.
        profile_cache: where costs are kept; None: in `default_folder`.
        stages: told what is being done.
        show: told how far measuring is, which takes long where nothing is kept.
    """

    spec: ClusterSpec
    folder: Path
    temporary: bool = False  # remove the folder at the end, unless workers failed
    profile: ProfileMode = "off"
    profile_cache: Path | None = None
    stages: Stages = field(default_factory=Stages)
    show: Show = nobody_looks
    link_samples: LinkSamples = field(default_factory=dict)
    _pool: WorkerPool | None = None
    _cluster: Cluster | None = None

    @property
    def pool(self) -> WorkerPool:
        """The workers; started at first use, and again after a failure."""
        if self._pool is None or not self._pool.connections:
            if not self.spec.external:
                log.info("starting %d workers for cluster '%s'", len(self.spec.devices), self.spec.name)
            self.stages.stage(f"start of {len(self.spec.devices)} workers")
            with interrupts_held():  # not between its start and its name here
                self._pool = WorkerPool(self.spec, self.folder, again=self._pool is not None)
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
                pool = self.pool
                self.stages.stage(f"probe of {len(pairs)} links")
                self.link_samples = pool.call(_probe)[0]
                links = {pair: fit_link(samples) for pair, samples in self.link_samples.items()}
            devices = located(self.spec.devices, self.pool) if self.spec.external else self.spec.devices
            hosts: dict[str, list[str]] = {}
            for device in devices:
                if device.host is not None:
                    hosts.setdefault(device.host, []).append(device.name)
            self._cluster = Cluster(self.spec.name, devices, links, nics=nics_of(hosts, links))
        return self._cluster

    def planner(
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
        on_nonfinite: OnNonFinite | None = "stop",
        weights: WeightSource | None = None,
        offload: OffloadName = "none",
        known_costs: Costs | None = None,
        alike: bool = False,
    ) -> Planner:
        """Capture the training step, measure its operators on a worker of each device kind, or predict them.

        Args:
            batch: one whole example batch `(inputs, targets)`; cut into micro-batches here.
            clip_norm: the gradients' norm over all devices is cut to this before a step.
            weights: where workers have the values from of a model on the meta device.
            offload: what lies in the host's memory while no device computes with it.
            autocast: "bfloat16" or "float16" for ``torch.autocast``; float16 brings a loss scale.
            learning_rate: how it changes while training goes on.
            ema_decay: of moving averages of the parameters; None: there are none.
            on_nonfinite: see `UpdateRule`.
            max_programs: kinds of batches that training may see, and that prediction may.
            known_costs: of the step at the size of a micro-batch, complete; None: found here.
            alike: refuse micro-batches that do not add up to their batch (see `check_cutting`).
            check: run what is captured beside plain PyTorch, and refuse what differs (see `graph.check`).

        Raises:
            CaptureError: the model cannot be captured, or would train something else.
            ConfigError: a batch that cannot be cut, no room for any program, or a device whose costs are to
                be predicted and cannot be.
            NetSplitError: the model has other operators on a smaller last micro-batch.
        """
        refuse_surrounding(autocast)
        if on_nonfinite == "skip" and schedule.update_every is not None:
            raise ConfigError(
                f"on_nonfinite is skip, and under {schedule.name} devices step within the batch, before its "
                "loss is known: give stop or warn, or choose another schedule."
            )
        if self.profile == "predicted":
            rates_by_kind(self.spec.devices, autocast)
        check_numbers(max_programs=max_programs)
        known: dict[Hashable, tuple[int | None, ...]] = {}
        whole = Batch.of(*batch, known=known)
        if whole.samples == 0:
            raise ConfigError("the batch has no samples: give one of the size to train with.")
        size, schedule = schedule.microbatch_size(whole.samples), schedule.for_batch(whole.samples)
        example = whole.rows(0, size).own()
        options: dict[str, Any] = {"autocast": autocast, "device_type": _device_type(self.spec, autocast)}
        self.stages.stage("capture")
        log.info("capturing %s at micro-batches of %d", type(model).__name__, size)
        if any(p.grad is not None for p in model.parameters()):
            log.warning(
                "parameters of %s hold gradients already: the split model begins without them",
                type(model).__name__,
            )
        graph = checked_capture(model, loss, example, check, **options)
        log.info("captured %d operators, %d variables", len(graph), len(graph.variables))
        self.stages.note(f"{len(graph):,} operators")
        rest = whole.rows(whole.samples - whole.samples % size, whole.samples)
        tail = checked_capture(model, loss, rest.own(), check, **options) if rest.samples else None
        with interrupts_held():
            history = check_cutting(model, loss, whole, graph, tail, alike) if check else None
        values = initial_values(model, graph, loss)
        source = self._source(weights, model, graph, values)
        in_flight = schedule.in_flight(len(self.spec.devices))
        optimizer = for_model(optimizer, model, loss)
        check_idle(optimizer, graph)
        if Offload.of(offload).optimizer:
            check_buckets(optimizer)
        rule = UpdateRule(clip_norm, autocast == "float16", learning_rate, ema_decay, on_nonfinite)
        costs = known_costs
        if costs is None:
            costs = self._costs(graph, example.tensors, values, optimizer, in_flight)
            costs = _complete(costs, graph, ema_decay, offload)
        return Planner(
            model, graph, values, costs, self.cluster, schedule, optimizer, loss, rule, tail, whole.key,
            known, max_programs, check, history, weights=source,
            parts=self._parts(graph, example.tensors, values, optimizer, in_flight, costs),
        )  # fmt: skip

    def decided(
        self,
        model: nn.Module,
        loss: Loss | None,
        batch: tuple[Any, Any],
        open_: AutoSchedule,
        method: Partitioner,
        optimizer: OptimizerFactory,
        clip_norm: float | None = None,
        autocast: str | None = None,
        learning_rate: LearningRate | None = None,
        ema_decay: float | None = None,
        max_programs: int = MAX_PROGRAMS,
        check: bool = True,
        on_nonfinite: OnNonFinite | None = "stop",
        weights: WeightSource | None = None,
        offload: OffloadName = "none",
        *,
        seed: int = 0,
    ) -> Planner:
        """The planner of the whole plan: schedule, micro-batches and all else are decided here.

        Operators are measured at two sizes of micro-batches, whole micro-batches at all (see `Sizes`).

        Args:
            method: whose placements are wanted; `auto` is the best of all.
            others: as for `planner`.

        Raises:
            InfeasibleError: nothing fits.
            others: as for `planner`.
        """
        refuse_surrounding(autocast)
        if self.profile == "predicted":
            rates_by_kind(self.spec.devices, autocast)
        whole = Batch.of(*batch)
        if whole.samples == 0:
            raise ConfigError("the batch has no samples: give one of the size to train with.")
        options: dict[str, Any] = {"autocast": autocast, "device_type": _device_type(self.spec, autocast)}
        made, rule = for_model(optimizer, model, loss), UpdateRule(clip_norm, autocast == "float16")
        in_flight = OneFOneB().in_flight(len(self.spec.devices))

        def measure(graph: Graph, example: Batch, alone: bool) -> Costs:
            values = initial_values(model, graph, loss)
            self._source(weights, model, graph, values)
            return self._costs(graph, example.tensors, values, made, in_flight, alone)

        def in_turn(steps: Sequence[SizedStep]) -> SizeSeconds:
            names = dict.fromkeys(k for step in steps for k in step.graph.initializers)
            values = initial_values(model, steps[0].graph, loss)
            copies = {k: values[k].detach() for k in names}
            return measured_in_turn(steps, copies, self.pool, self.cluster, self._cache)

        known: KnownParts = {}  # of all sizes

        def planner_at(graph: Graph, costs: Costs, m: int) -> Planner:
            batch, values = whole.rows(0, graph.batch_size).tensors, initial_values(model, graph, loss)
            parts = self._parts(graph, batch, values, made, in_flight, costs, known)
            return Planner(
                model, graph, {}, costs, self.cluster, GPipe(m), made, loss, rule, max_programs=max_programs,
                parts=parts,
            )  # fmt: skip

        cutting = RightCuts(model, loss, whole, open_.microbatches is not None)
        sizes = Sizes(
            whole,
            open_.counts(whole.samples, len(self.spec.devices)),
            lambda example: checked_capture(model, loss, example, check=False, **options),
            measure,
            lambda costs, graph: _complete(costs, graph, ema_decay, offload),
            planner_at,
            self.profile == "predicted",
            in_turn,
            cutting.right if check else lambda graphs, counts: counts,
            in_flight=in_flight,
        )
        self.stages.stage(f"capture at {len(sizes.counts)} sizes of micro-batches")
        sizes.take(seed)
        more = sizes.derivable(open_.counts(whole.samples, len(self.spec.devices) + 1))

        def decide(counts: Sequence[int]) -> WholePlan:
            self.stages.stage("plan of everything", open_.time_limit_s, "s")
            return decide_whole(
                sizes.problem,
                counts,
                whole.samples,
                open_,
                method=None if isinstance(method, Auto) else method,
                improved=lambda s, source: self.stages.note(f"best so far {1e3 * s:.4g} ms, by {source}"),
                others=more if counts is sizes.counts else (),
                told=cutting.told if check else lambda microbatches: (),
            )

        def planner(plan: WholePlan, alike: bool) -> Planner:
            decided = sizes.planners[plan.schedule.microbatches]
            made = self.planner(
                model, loss, batch, plan.schedule, optimizer, clip_norm, autocast, learning_rate, ema_decay,
                max_programs, check, on_nonfinite, weights, offload, decided.costs, alike,
            )  # fmt: skip
            return replace(made, decided=plan, parts=decided.parts)

        return cutting.decided(decide, planner, sizes.counts)

    def deploy(
        self,
        planner: Planner,
        plan: Plan,
        owned: bool = False,
        seed: int = 0,
        backend: str | None = None,
        adapt: Adapt | None = None,
    ) -> ParallelModel:
        """Put a planner's parameters where its plan has them, ready to train from the model's present values.

        With `owned`, closing the result closes this session too. `seed` is of random operators, `backend` of
        `torch.compile`, by which segments are compiled. With `adapt` other plans are looked for in training.

        Raises:
            NetSplitError: replicas of a stage would write a buffer each; or it is to adapt, and cannot.
        """
        self.stages.stage("parameters to the devices")
        if adapt is not None:
            require_adaptable(plan, backend)
        program, _ = plan.simulated
        began = time.perf_counter()
        check_replicas(plan.problem.graph, plan.placement.replicated)
        programs = planner.programs(plan.placement, program)
        runtime = DistributedRuntime(
            program, self.pool, planner.tensors, planner.optimizer, planner.rule, programs.training, seed,
            planner.weights,
            backend,
            planner.costs.offload,
        )  # fmt: skip
        placed_s = time.perf_counter() - began
        return ParallelModel(
            planner.model,
            planner.graph,
            runtime,
            programs,
            plan,
            self.close if owned else None,
            planner.decided,
            None if adapt is None else Adaptation.of(adapt, plan, placed_s),
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

    def _source(
        self, weights: WeightSource | None, model: nn.Module, graph: Graph, values: dict[str, Tensor]
    ) -> WeightSource | None:
        """Of those values that are on the meta device.

        Raises:
            ConfigError: they have none, or operators are to be measured with them.
        """
        source = weight_source_of(weights, model, graph, values)
        if source is not None and self.profile != "predicted":
            raise ConfigError(
                "the model is on the meta device, so that its operators have nothing to be measured "
                "with: give profile='predicted'."
            )
        return source

    def _costs(
        self,
        graph: Graph,
        batch: tuple[Tensor, ...],
        values: dict[str, Tensor],
        optimizer: OptimizerFactory,
        in_flight: int = 1,
        alone: bool = False,
    ) -> Costs:
        """Predicted; else as kept where nothing has changed, or measured on the workers.

        Args:
            alone: of single devices, without how they slow one another.
        """
        if self.profile == "predicted":
            return predicted_here(graph, optimizer, self.pool, self.cluster)
        task = _task(graph, batch, values, optimizer, in_flight)
        tell(self.pool, [graph], optimizer)
        return calibrate(task, self.pool, self.cluster, self._cache, self.show, alone)

    @property
    def _cache(self) -> ProfileCache:
        folder = None if self.profile == "off" else self.profile_cache or default_folder()
        return ProfileCache(folder, self.profile == "refresh", _UNSURE)

    def _parts(
        self,
        graph: Graph,
        batch: tuple[Tensor, ...],
        values: dict[str, Tensor],
        optimizer: OptimizerFactory,
        in_flight: int,
        costs: Costs,
        known: KnownParts | None = None,
    ) -> MeasuredParts | None:
        """What will measure operators in parts; None where seconds are predicted."""
        if self.profile == "predicted":
            return None
        task = _task(graph, batch, values, optimizer, in_flight)
        told, known = self.stages.note, {} if known is None else known
        return MeasuredParts(task, costs, lambda: self.pool, self.cluster, self._cache, told, known)


def _task(
    graph: Graph,
    batch: tuple[Tensor, ...],
    values: dict[str, Tensor],
    optimizer: OptimizerFactory,
    in_flight: int,
) -> Calibration:
    copies = {k: values[k].detach() for k in graph.initializers}
    return Calibration(replace(graph, output_spec=None), batch, copies, optimizer, in_flight)


def _complete(costs: Costs, graph: Graph, ema_decay: float | None, offload: OffloadName) -> Costs:
    """With the bytes of averages, and of what is offloaded."""
    return offloaded(replace(costs, alpha=costs.alpha + (ema_decay is not None)), graph, offload)


def _device_type(spec: ClusterSpec, autocast: str | None) -> str:
    """The kind of all devices; under autocast they must be of one, as what is cast differs."""
    kinds = sorted({torch.device(device.torch_device).type for device in spec.devices})
    if autocast is not None and len(kinds) > 1:
        raise ConfigError(
            f"autocast is {autocast}, and cluster '{spec.name}' mixes {' and '.join(kinds)}, which cast "
            "other operators: leave it out, or take devices of one kind."
        )
    return kinds[0]


def _probe(worker: Worker) -> LinkSamples:
    names = [device.name for device in worker.devices]
    transport = worker.transport()
    transport.connect(permutations(names, 2))
    own = worker.device.name
    return probe_links(transport, own, names, worker.torch_device, timeout_s=worker.timeout_s)
