"""Costs of what a rewrite makes, measured on the workers that train: each kind of operator once.

new nodes of a plan ──► those whose like was never measured ──► one worker of each kind ──► known, kept
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from netsplit.cluster.cluster import Cluster
from netsplit.experiment.calibration import Calibration, identity_of
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs, PartCosts
from netsplit.profile.measure.parts import profile_parts
from netsplit.profile.measured import ProfileCache, parts_digest
from netsplit.rewrite.draft import MOVES
from netsplit.rewrite.seconds import new_nodes, operator_key
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker

__all__ = ["MeasuredParts"]

log = logging.getLogger(__name__)


@dataclass(eq=False)
class MeasuredParts:
    """What is known of parts of one step's operators.

    Args:
        task: the step as it was captured, with its batch and values.
        pool: of the workers, which may be others after a failure.
        cache: where they are kept, for all graphs.
        known: device kind -> what an operator does (`operator_key`) -> its costs.
    """

    task: Calibration
    pool: Callable[[], WorkerPool]
    cluster: Cluster
    cache: ProfileCache
    known: dict[str, dict[str, PartCosts]] = field(default_factory=dict)
    _made: dict[int, tuple[Costs, Costs]] = field(default_factory=dict)

    def added_to(self, costs: Costs) -> Costs:
        """Costs with all that is known of parts; the same object until more is."""
        if not self.known:
            return costs
        if id(costs) not in self._made:
            devices = {
                kind: replace(each, parts=dict(self.known[kind])) if kind in self.known else each
                for kind, each in costs.devices.items()
            }
            self._made[id(costs)] = costs, replace(costs, devices=devices)
        return self._made[id(costs)][1]

    def measure(self, costs: Costs, before: Graph, after: Graph) -> bool:
        """Measure those nodes of a rewritten graph whose like is not known; whether there were any."""
        keys = {name: operator_key(after, after.nodes[name]) for name in new_nodes(before, after)}
        some = False
        for kind, own in costs.devices.items():
            ranks = [rank for rank, device in enumerate(self.cluster.devices) if device.kind == kind]
            if own.rates is None and ranks and before.nodes.keys() <= own.nodes.keys():
                some |= self._measure_on(kind, ranks[0], after, keys)
        if some:
            self._made.clear()
        return some

    def _measure_on(self, kind: str, rank: int, graph: Graph, keys: dict[str, str]) -> bool:
        digest = parts_digest(identity_of(self.pool(), rank), in_flight=self.task.in_flight)
        known = self.known.get(kind) or self.cache.parts(digest)
        names = {key: name for name, key in keys.items() if key not in known}
        more: dict[str, PartCosts] = {}
        if names:
            log.info("measuring %d operators in parts on %s", len(names), self.cluster.devices[rank].name)
            sent = replace(graph, output_spec=None)
            task = self.task
            measured = self.pool().call_one(
                rank, _measure, sent, task.batch, task.values, sorted(names.values()), task.in_flight
            )
            more = {key: measured[name] for key, name in names.items()}
            self.cache.add_parts(digest, more)
        changed = self.known.get(kind) != {**known, **more}
        self.known[kind] = {**known, **more}
        return changed


def _measure(
    worker: Worker,
    graph: Graph,
    batch: tuple[Tensor, ...],
    wholes: dict[str, Tensor],
    names: list[str],
    in_flight: int,
) -> dict[str, PartCosts]:
    """On one worker, alone; a part of a parameter has memory of its own, as where it is trained."""
    values = {
        k: init.within(wholes) if init.region is None else init.within(wholes).contiguous().clone()
        for k, init in graph.initializers.items()
    }
    return profile_parts(graph, batch, values, names, MOVES, worker.torch_device, in_flight=in_flight)
