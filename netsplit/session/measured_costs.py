"""What a training step costs on workers that are here: predicted, kept where nothing changed, or measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import ClassVar, Protocol

from torch import Tensor

from netsplit.cluster.cluster import Cluster, Link
from netsplit.cluster.local import ClusterSpec
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs
from netsplit.profile.measure.stretches.in_turn import SizedStep
from netsplit.profile.measured import Measured, ProfileCache
from netsplit.profile.sized import SizeSeconds
from netsplit.progress import Stages
from netsplit.runtime.controller.loaded import tell
from netsplit.runtime.controller_seconds import controller_seconds
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.session.calibration import Calibration, Calibrator, predicted_here
from netsplit.session.in_turn import measured_in_turn
from netsplit.session.measured_parts import KnownParts, MeasuredParts

__all__ = ["UNSURE", "CostSource", "MeasuredCosts"]

UNSURE: dict[str, Measured] = {}
"""Kept by all sessions of this process, as those of a sweep's jobs."""


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
        return measured_in_turn(steps, values, self.pool(), self.linked(), self.cache)

    def meter(self, task: Calibration, whole: Costs, known: KnownParts | None = None) -> MeasuredParts | None:
        if self.predicted:
            return None
        known = {} if known is None else known
        return MeasuredParts(task, whole, self.pool, self.linked(), self.cache, self.stages.note, known)
