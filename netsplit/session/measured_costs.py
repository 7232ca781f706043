"""What a training step costs on workers that are here: predicted, kept where nothing changed, or measured."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import ClassVar, Protocol

from torch import Tensor

from netsplit.cluster.cluster import Cluster, Link
from netsplit.cluster.local import ClusterSpec
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs
from netsplit.profile.measure.stretch import SizedStep, take_turns
from netsplit.profile.measured import ProfileCache, profile_digest
from netsplit.profile.sized import SizeSeconds
from netsplit.progress import Stages
from netsplit.runtime.controller.loaded import tell
from netsplit.runtime.controller_seconds import controller_seconds
from netsplit.runtime.workers.machines import identity_of
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker
from netsplit.session.calibration import Calibration, Calibrator, predicted_here
from netsplit.session.measured_parts import KnownParts, MeasuredParts

__all__ = ["CostSource", "MeasuredCosts"]


log = logging.getLogger(__name__)


class CostSource(Protocol):
    """What training steps cost on some devices."""

    @property
    def is_local(self) -> bool:
        """Whether they are here, and what is planned will be trained on them."""

    @property
    def predicted(self) -> bool:
        """Whether seconds are predicted at every size of micro-batches, instead of measured at two."""

    @property
    def count(self) -> int:
        """The number of devices."""

    def of(self, task: Calibration, alone: bool = False) -> Costs:
        """Costs of a step on every kind of device; alone: without how devices slow one another."""

    def cluster(self, graph: Graph, costs: Costs, in_flight: int) -> Cluster:
        """The devices and links for a graph."""

    def meter(self, task: Calibration, whole: Costs, known: KnownParts | None = None) -> MeasuredParts | None:
        """What measures operators in parts; None where seconds are predicted.

        Args:
            whole: costs of the step's operators.
            known: of parts of the same step at other sizes; added to.
        """


@dataclass(eq=False)
class MeasuredCosts:
    """Costs on workers.

    Args:
        predicted: no operator is measured, but the speed of the workers.
        stages: told how far measuring is.
        pool: the workers, which may be others after a failure.
        linked: the cluster of them, with its links.
    """

    spec: ClusterSpec
    predicted: bool
    cache: ProfileCache
    stages: Stages
    pool: Callable[[], WorkerPool]
    linked: Callable[[], Cluster]
    controller_s: float | None = None  # of an iteration, once it was measured
    is_local: ClassVar[bool] = True

    @property
    def count(self) -> int:
        return len(self.spec.devices)

    def of(self, task: Calibration, alone: bool = False) -> Costs:
        if self.predicted:
            costs = predicted_here(task.graph, task.optimizer, self.pool(), self.linked())
        else:
            tell(self.pool(), [task.graph], task.optimizer)
            measuring = Calibrator(task, self.pool(), self.linked(), self.cache, self.stages, alone)
            costs = measuring.costs()
        if self.controller_s is None and self.pool().deployed is None:
            self.controller_s = controller_seconds(self.pool(), self.linked(), costs)
        return replace(costs, controller_s=self.controller_s or 0.0)

    def cluster(self, graph: Graph, costs: Costs, in_flight: int) -> Cluster:
        return self.linked()

    @property
    def unlinked(self) -> Cluster:
        """The devices without a worker, as if links took no time."""
        links = {(p.name, q.name): Link(0.0, 0.0) for p, q in permutations(self.spec.devices, 2)}
        return Cluster(self.spec.name, self.spec.devices, links)

    def in_turn(self, steps: Sequence[SizedStep], values: dict[str, Tensor]) -> SizeSeconds:
        """What whole micro-batches of several sizes take beside one another."""
        return _measured_in_turn(steps, values, self.pool(), self.linked(), self.cache)

    def meter(self, task: Calibration, whole: Costs, known: KnownParts | None = None) -> MeasuredParts | None:
        if self.predicted:
            return None
        known = {} if known is None else known
        return MeasuredParts(task, whole, self.pool, self.linked(), self.cache, self.stages.note, known)


def _measured_in_turn(
    steps: Sequence[SizedStep],
    values: dict[str, Tensor],
    pool: WorkerPool,
    cluster: Cluster,
    cache: ProfileCache,
) -> SizeSeconds:
    """Seconds on every device kind: kept ones where nothing has changed, else measured now."""
    seconds: dict[str, dict[int, float]] = {}
    sent = [replace(step, graph=replace(step.graph, output_spec=None)) for step in steps]
    sizes = [(step.graph.batch_size, step.in_flight) for step in sent]
    for rank, device in enumerate(cluster.devices):
        if device.kind in seconds:
            continue
        digest = f"sizes-{profile_digest(sent[0].graph, identity_of(pool, rank), sizes=sizes)}"
        kept = cache.get(digest, dict[int, float])
        if kept is None:
            log.info("Measuring %d micro-batch sizes on %s.", len(sizes), device.name)
            kept = pool.call_one(rank, _take_turns, sent, values)
            cache.put(digest, kept)
        seconds[device.kind] = kept
    return seconds


def _take_turns(worker: Worker, steps: list[SizedStep], values: dict[str, Tensor]) -> dict[int, float]:
    return take_turns(steps, values, worker.torch_device)
