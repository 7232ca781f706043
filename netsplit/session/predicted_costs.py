"""Devices whose seconds are predicted: described ones, or those of this machine, without a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from netsplit.cluster.catalogue import Rates
from netsplit.cluster.cluster import Cluster
from netsplit.cluster.described import ClusterDescription
from netsplit.cluster.local import ClusterSpec, check_offload
from netsplit.graph.ir import Graph
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, OptimizerScratch
from netsplit.profile.measure.clock import reference_seconds
from netsplit.profile.measure.optimizer import optimizer_alpha
from netsplit.profile.measure.step_scratch import optimizer_scratch
from netsplit.profile.predict import predicted_costs
from netsplit.runtime.share import OptimizerFactory
from netsplit.session.calibration import Calibration, rates_here
from netsplit.session.measured_parts import KnownParts
from netsplit.settings import OffloadName

__all__ = ["PredictedCosts"]


@dataclass
class PredictedCosts:
    """Costs from the rates of devices, which need not be here; no worker is started.

    Args:
        count: of devices.
        rates: device kind -> its rates.
        resolved: the cluster of a graph, by the kind that its costs are of and the bytes of all of it.
        overlap: of transfers with computing.
        device_type: whose autocast casts.
    """

    count: int
    rates: Mapping[str, Rates]
    resolved: Callable[[str, int], Cluster]
    overlap: bool = True
    device_type: str = "cpu"
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
        """Predicts for a description that names models, or for this machine, with links as stated or usual.

        Raises:
            ConfigError: there are no rates of a device, or none under `autocast`; speeds are given relative
                to a profile; or the devices cannot offload.
        """
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
        return cls(len(cluster.speeds), rates, cluster.cluster, cluster.overlap)
