"""The rooms strung together: workers, capture, costs, links, decision, program, runtime.

Session(cluster) ──planner──► Planner ──plan──► Plan ──deploy──► ParallelModel
 workers, links               graph, costs      verified         trains, evaluates, saves
"""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any, Self, Unpack

from torch import nn

from netsplit.cluster.cluster import Cluster, Link, nics_of
from netsplit.cluster.local import ClusterSpec
from netsplit.cluster.probe import fit_link, probe_links
from netsplit.experiment.calibration import located, with_room
from netsplit.experiment.here.costs import CostsHere
from netsplit.experiment.here.step import StepHere, TrainingOptions
from netsplit.experiment.planner import Planner
from netsplit.experiment.stages import Stages
from netsplit.experiment.trial_run import Show, nobody_looks
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.replicated import check_replicas
from netsplit.interrupts import interrupts_held
from netsplit.partition.engines.search import load_kernels
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.plan import Plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.profile.optimizer_checks import check_switchable
from netsplit.program.schedules import Schedule
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.share import OptimizerFactory
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker
from netsplit.settings import ProfileMode
from netsplit.training.adapt.adaptation import Adapt, Adaptation
from netsplit.training.adapt.switchable import require_adaptable
from netsplit.training.parallel import ParallelModel

__all__ = ["Session"]

log = logging.getLogger(__name__)

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
                log.info("Starting %d workers (cluster %s).", len(self.spec.devices), self.spec.name)
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
                log.info("Measuring %d links between the workers.", len(pairs))
                pool = self.pool
                self.stages.stage(f"probe of {len(pairs)} links")
                self.link_samples = pool.call(_probe)[0]
                links = {pair: fit_link(samples) for pair, samples in self.link_samples.items()}
            devices = located(self.spec.devices, self.pool) if self.spec.external else self.spec.devices
            if any(device.torch_device.startswith("cuda") for device in devices):
                devices = with_room(devices, self.pool)
            hosts: dict[str, list[str]] = {}
            for device in devices:
                if device.host is not None:
                    hosts.setdefault(device.host, []).append(device.name)
            self._cluster = Cluster(self.spec.name, devices, links, nics=nics_of(hosts, links))
        return self._cluster

    @property
    def costs(self) -> CostsHere:
        """What training steps cost on these workers."""
        return CostsHere(
            self.spec,
            self.profile,
            self.profile_cache,
            self.stages,
            self.show,
            lambda: self.pool,
            lambda: self.cluster,
        )

    def planner(
        self,
        model: nn.Module,
        loss: Loss | None,
        batch: tuple[Any, Any],
        schedule: Schedule,
        optimizer: OptimizerFactory,
        **options: Unpack[TrainingOptions],
    ) -> Planner:
        """Capture the training step, measure its operators on a worker of each device kind, or predict them.

        Args:
            batch: one whole example batch `(inputs, targets)`.
            options: see `StepHere`.

        Raises:
            CaptureError, ConfigError, NetSplitError: see `StepHere.planner`.
        """
        return StepHere(self.costs, model, loss, batch, optimizer, **options).planner(schedule)

    def decided(
        self,
        model: nn.Module,
        loss: Loss | None,
        batch: tuple[Any, Any],
        open_: AutoSchedule,
        method: Partitioner,
        optimizer: OptimizerFactory,
        *,
        seed: int = 0,
        adapts: bool = False,
        **options: Unpack[TrainingOptions],
    ) -> Planner:
        """The planner of the whole plan: schedule, micro-batches and all else are decided here.

        What is not named below is as for `planner`.

        Args:
            method: whose placements are wanted; `auto` is the best of all.
            adapts: no plan that a training could not change.

        Raises:
            InfeasibleError: nothing fits.
            others: as for `planner`.
        """
        step = StepHere(self.costs, model, loss, batch, optimizer, **options)
        return step.decided(open_, method, seed, adapts)

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
            check_switchable(planner.optimizer, planner.rule.learning_rate)
            load_kernels()
        program, _ = plan.simulated
        began = time.perf_counter()
        check_replicas(plan.problem.graph, plan.placement.replicated, planner.decided is None)
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


def _probe(worker: Worker) -> LinkSamples:
    names = [device.name for device in worker.devices]
    transport = worker.transport
    transport.connect(permutations(names, 2))
    own = worker.device.name
    gpus = [device.name for device in worker.devices if device.torch_device.startswith("cuda")]
    return probe_links(transport, own, names, worker.torch_device, timeout_s=worker.timeout_s, gpus=gpus)
