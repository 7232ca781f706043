"""Costs without a worker: predicted, of described devices or those of this machine; or from a graph file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from netsplit.cluster.catalogue import Rates
from netsplit.cluster.cluster import Cluster
from netsplit.cluster.described import ClusterDescription
from netsplit.cluster.local import ClusterSpec, check_offload
from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.whole_plan import WholePlan, decide_whole, plan_under
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, OptimizerScratch
from netsplit.profile.measure.clock import reference_seconds
from netsplit.profile.measure.optimizer import optimizer_alpha, optimizer_scratch
from netsplit.profile.predict import predicted_costs
from netsplit.program.schedules import GPipe, Schedule
from netsplit.progress import Stages
from netsplit.runtime.share import OptimizerFactory
from netsplit.session.calibration import Calibration, KnownParts, rates_here
from netsplit.settings import OffloadName, check_numbers

__all__ = ["FileCosts", "PredictedCosts"]


@dataclass
class PredictedCosts:
    """Costs from the rates of devices, which need not be here; no worker is started.

    Args:
        count: of devices.
        rates: device kind -> its rates.
        resolved: the cluster of a graph, by the kind that its costs are of and the bytes of all of it.
        overlap: of transfers with computing.
        device_type: whose autocast casts.
        host: devices of a host, where all of a description's are alike, and its hosts; else 0.
        nccl: collectives take what NCCL's do.
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

    def whole_plan(
        self,
        order: Schedule | AutoSchedule,
        method: Partitioner,
        seed: int = 0,
        stages: Stages | None = None,
    ) -> WholePlan:
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
                told=lambda m: left_out,
            )  # fmt: skip
        problem = self._problem(order.with_microbatches(self.microbatches), seed)
        return plan_under(replace(problem, improved=improved), method, samples)

    def _problem(self, schedule: Schedule, seed: int) -> Problem:
        return self.work.problem(
            self.cluster, "simulated", schedule=schedule, seed=seed, memory="lifetimes", offload=self.offload
        )
