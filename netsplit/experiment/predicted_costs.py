"""Devices whose seconds are predicted: described ones, or those of this machine, without a worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import ClassVar

import torch

from netsplit.cluster.catalogue import Accelerator, rates_by_kind
from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.cluster.described import ClusterDescription
from netsplit.cluster.local import ClusterSpec, check_offload
from netsplit.cluster.nvml import found_gpus
from netsplit.errors import NetSplitError
from netsplit.experiment.calibration import Calibration
from netsplit.experiment.measured_parts import KnownParts
from netsplit.graph.ir import Graph
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, OptimizerScratch
from netsplit.profile.measure.clock import reference_seconds
from netsplit.profile.measure.optimizer import optimizer_alpha
from netsplit.profile.measure.step_scratch import optimizer_scratch
from netsplit.profile.predict import predicted_costs
from netsplit.runtime.share import OptimizerFactory
from netsplit.settings import OffloadName

__all__ = ["BETWEEN_PROCESSES", "PredictedCosts", "cluster_here"]

log = logging.getLogger(__name__)

BETWEEN_PROCESSES = Link(60e-6, 1 / 6e9)
"""Of CPU workers of one host where nobody states another: one copy from the other's memory, as `netsplit
probe` measures it."""


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
    rates: Mapping[str, Accelerator]
    resolved: Callable[[str, int], Cluster]
    overlap: bool = True
    device_type: str = "cpu"
    _optimizer: tuple[OptimizerFactory, int, OptimizerScratch] | None = None  # the last, with what it keeps
    here: ClassVar[bool] = False
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
        """What `on_machine` or `described` makes of it.

        Raises:
            ConfigError: as these do, or the devices cannot offload.
        """
        if isinstance(cluster, ClusterSpec):
            check_offload(offload, cluster.devices)
            return cls.on_machine(cluster, autocast)
        return cls.described(cluster, autocast)

    @classmethod
    def described(cls, description: ClusterDescription, autocast: str | None = None) -> PredictedCosts:
        """Of a description that names models.

        Raises:
            ConfigError: speeds are given relative to a profile, or a device does not compute in the dtype of
                `autocast`.
        """
        description.require_models()
        for each in description.accelerators.values():
            each.under(autocast)
        rates = {each.name: each for each in description.accelerators.values()}
        return cls(len(description.speeds), rates, description.cluster, description.overlap)

    @classmethod
    def on_machine(cls, spec: ClusterSpec, autocast: str | None = None) -> PredictedCosts:
        """Of this machine: a processor at the speed that it has in this process, links as stated or usual.

        Raises:
            ConfigError: there are no rates of a device, or none under `autocast`.
        """
        rates = {}
        for kind, each in rates_by_kind(spec.devices, autocast).items():
            on = next(device.torch_device for device in spec.devices if device.kind == kind)
            speed = each.reference_s / reference_seconds(on) if each.reference_s else 1.0
            log.info(
                "Predicting seconds on %s: rates of %s, at %.2f times its speed.", kind, each.name, speed
            )
            rates[kind] = each.at(speed, kind)
        cluster = cluster_here(spec)
        kinds = {torch.device(device.torch_device).type for device in spec.devices}
        return cls(len(spec.devices), rates, lambda base, need: cluster, device_type=min(kinds))


def cluster_here(spec: ClusterSpec) -> Cluster:
    """Devices of this machine with links that nobody probes."""
    return Cluster(spec.name, spec.devices, _links(spec))


def _links(spec: ClusterSpec) -> dict[tuple[str, str], Link]:
    """As stated; else between GPUs what the driver promises, and `BETWEEN_PROCESSES` for all others."""
    pairs = permutations(spec.devices, 2)
    if spec.bandwidth is not None:
        given = Link(spec.latency_s or 0.0, 1.0 / spec.bandwidth)
        return {(p.name, q.name): given for p, q in pairs}
    promised = _promised(spec.devices)
    return {
        (p.name, q.name): promised.get((p.torch_device, q.torch_device), BETWEEN_PROCESSES) for p, q in pairs
    }


def _promised(devices: tuple[Device, ...]) -> dict[tuple[str, str], Link]:
    """Of GPUs, by torch's names of both."""
    if sum(device.torch_device.startswith("cuda") for device in devices) < 2:
        return {}
    try:
        links = found_gpus().links
    except NetSplitError as error:
        log.warning("The driver does not say how the GPUs are linked: %s", error)
        return {}
    ways = {(f"cuda:{p}", f"cuda:{q}"): link for (p, q), link in links.items()}
    return ways | {(q, p): link for (p, q), link in ways.items()}
