"""A session, from workers to a trained model: capture, costs, links, decision, program, runtime.

Session(cluster) ──step──► ModelStep ──problem──► Problem ──plan──► Plan ──deploy──► ParallelModel
 workers, links                              graph, costs        verified         trains, evaluates, saves
"""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from netsplit.cluster.catalogue import rates_by_kind
from netsplit.cluster.cluster import Cluster, nics_of
from netsplit.cluster.local import ClusterSpec
from netsplit.cluster.probe import fit_link, probe_links
from netsplit.errors import ConfigError
from netsplit.graph.batches.batch import Loss
from netsplit.graph.checks.replicated import check_replicas
from netsplit.graph.operators import refuse_surrounding
from netsplit.interrupts import interrupts_held
from netsplit.partition.base import Problem
from netsplit.partition.compile_all import load_kernels
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.plan import Plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.profile.measure.optimizer import check_switchable
from netsplit.profile.measured import ProfileCache, default_folder
from netsplit.program.schedules import Schedule
from netsplit.progress import Stages
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.workers.messages import Worker
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.session.calibration import located, with_room
from netsplit.session.costs import MeasuredCosts
from netsplit.session.decision import problem_of, training_plan
from netsplit.session.step import ModelStep
from netsplit.settings import ProfileMode
from netsplit.training.adapt.adaptation import Adaptation
from netsplit.training.adapt.switchable import require_adaptable
from netsplit.training.options import Training
from netsplit.training.parallel import ParallelModel

__all__ = ["Session"]

log = logging.getLogger(__name__)

LinkSamples = dict[tuple[str, str], list[tuple[int, float]]]


@dataclass
class Session:
    """Workers for a cluster, and the links measured between them.

    Args:
        spec: the cluster; its links are probed unless it states them.
        folder: for the workers' logs.
        profile: reuse: costs are cached; refresh: measured again and cached; off: measured; predicted: from
            the graph and the rates of device kinds.
        profile_cache: folder of the cache; None: `default_folder`.
    """

    spec: ClusterSpec
    folder: Path
    temporary: bool = False  # remove the folder at the end, unless workers failed
    profile: ProfileMode = "off"
    profile_cache: Path | None = None
    stages: Stages = field(default_factory=Stages)
    link_samples: LinkSamples = field(default_factory=dict)
    _pool: WorkerPool | None = None
    _cluster: Cluster | None = None

    @property
    def pool(self) -> WorkerPool:
        """The workers, started at first use and again after a failure."""
        if self._pool is None or not self._pool.connections:
            if not self.spec.external:
                log.info("Starting %d workers (cluster %s).", len(self.spec.devices), self.spec.name)
            self.stages.stage(f"starting {len(self.spec.devices)} workers")
            with interrupts_held():  # not before `_pool` holds the workers
                self._pool = WorkerPool(self.spec, self.folder, again=self._pool is not None)
        return self._pool

    @property
    def cluster(self) -> Cluster:
        """The devices with their links, probed once between the workers."""
        if self._cluster is None:
            if (links := self.spec.stated_links) is None:
                pairs = len(self.spec.devices) * (len(self.spec.devices) - 1)
                log.info("Measuring %d links between the workers.", pairs)
                pool = self.pool
                self.stages.stage(f"probing {pairs} links")
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
    def costs(self) -> MeasuredCosts:
        folder = None if self.profile == "off" else self.profile_cache or default_folder()
        cache = ProfileCache(folder, self.profile == "refresh")
        asked = self.spec, self.profile == "predicted", cache, self.stages
        return MeasuredCosts(*asked, lambda: self.pool, lambda: self.cluster)

    def step(
        self, model: nn.Module, loss: Loss | None, batch: tuple[Any, Any], training: Training | None = None
    ) -> ModelStep:
        """The training step of a model on these workers.

        Args:
            batch: one whole example batch `(inputs, targets)`.

        Raises:
            ConfigError: a batch without samples, a device without known rates, autocast on mixed devices, or
                a learning rate that `LearningRate.check` refuses.
        """
        training = training or Training()
        autocast, spec = training.autocast, self.spec
        refuse_surrounding(autocast)
        if self.profile == "predicted":
            rates_by_kind(spec.devices, autocast)
        kinds = sorted({torch.device(device.torch_device).type for device in spec.devices})
        if autocast is not None and len(kinds) > 1:
            raise ConfigError(
                f"autocast is {autocast}, and cluster '{spec.name}' mixes {' and '.join(kinds)}, which "
                "cast different operators: leave autocast out, or use devices of one kind."
            )
        step = ModelStep(model, loss, batch, training, kinds[0], stages=self.stages)
        if training.learning_rate is not None:
            training.learning_rate.check(step.optimizer)
        return step

    def problem(self, step: ModelStep, schedule: Schedule) -> Problem:
        """A step's graph and its costs on these workers; see `problem_of`."""
        return problem_of(step, self.costs, schedule)

    def plan(self, step: ModelStep, order: Schedule | AutoSchedule, method: Partitioner) -> Plan:
        """A method's plan for a step.

        Raises:
            InfeasibleError: nothing fits.
            CaptureError, ConfigError, NetSplitError: as `training_plan`.
        """
        return training_plan(step, self.costs, order, method)

    def deploy(self, step: ModelStep, plan: Plan, owned: bool = False) -> ParallelModel:
        """Put a step's parameters where a plan has them, ready to train from the model's values.

        Args:
            owned: closing the result closes this session too.

        Raises:
            NetSplitError: replicas would each write a buffer, or the plan cannot adapt.
        """
        self.stages.stage("sending parameters to the devices")
        training, adapt = step.training, step.training.looks
        if adapt is not None:
            require_adaptable(plan, training.compile_backend)
            check_switchable(step.optimizer, training.learning_rate)
            load_kernels()
        began = time.perf_counter()
        check_replicas(plan.problem.graph, plan.placement.replicated, not plan.choice.frontier)
        programs, graph = step.programs(plan), plan.asked.graph
        runtime = DistributedRuntime(
            programs.program, self.pool, step.tensors(graph), step.optimizer, training.rule,
            programs.training, training.seed, step.weights(graph), training.compile_backend,
            plan.asked.costs.offload,
        )  # fmt: skip
        placed_s = time.perf_counter() - began
        close = self.close if owned else None
        adaptation = None if adapt is None else Adaptation.begin(adapt, plan, placed_s)
        return ParallelModel(step.model, graph, runtime, programs, plan, close, adaptation)

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
