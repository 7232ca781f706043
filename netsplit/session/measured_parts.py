"""Costs of what a rewrite makes, measured on the workers that train: each kind of operator once.

new nodes of a plan ──► those whose like was never measured ──► one worker of each kind ──► known, kept
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs, PartCosts
from netsplit.profile.measure.parts import profile_parts
from netsplit.profile.measured import ProfileCache, parts_digest
from netsplit.profile.operator_keys import new_nodes, operator_key
from netsplit.profile.optimizer_checks import check_element_wise
from netsplit.rewrite.emitter import MOVES
from netsplit.rewrite.records import Rewrite
from netsplit.runtime.workers.machines import identity_of
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker
from netsplit.session.calibration import Calibration

__all__ = ["KnownParts", "MeasuredParts"]

log = logging.getLogger(__name__)

KnownParts = dict[str, dict[str, PartCosts]]
"""Device kind -> what an operator does (`operator_key`) -> its costs."""


@dataclass(eq=False)
class MeasuredParts:
    """What is known of parts of one step's operators: a `partition.base.PartsMeter`.

    Args:
        task: the step as it was captured, with its batch and values.
        whole: costs of its operators.
        pool: of the workers, which may be others after a failure.
        cache: where they are kept, for all graphs.
        told: what is being measured, in words.
        known: may be that of the same step at other sizes, too.
    """

    task: Calibration
    whole: Costs
    pool: Callable[[], WorkerPool]
    cluster: Cluster
    cache: ProfileCache
    notify: Callable[[str], object] = lambda words: None
    known: KnownParts = field(default_factory=dict)
    spent_s: float = 0.0
    _measured: set[tuple[Rewrite, ...]] = field(default_factory=set)
    _costs: Costs | None = None

    @property
    def costs(self) -> Costs:
        """Costs of the step's operators and of all parts measured so far; the same object until more is."""
        if not self._measured:
            return self.whole
        if self._costs is None:
            devices = {
                kind: replace(each, parts=dict(self.known[kind])) if kind in self.known else each
                for kind, each in self.whole.devices.items()
            }
            self._costs = replace(self.whole, devices=devices)
        return self._costs

    def measured(self, graph: Graph) -> Costs:
        """`costs`, after those nodes of a rewritten graph have been measured whose like is not known.

        Raises:
            ConfigError: it has parameters in parts, of which the optimiser would make something else.
        """
        if graph.rewrites not in self._measured:
            began = time.perf_counter()
            if self._measure(graph):
                self._costs = None
            self._measured.add(graph.rewrites)
            self.spent_s += time.perf_counter() - began
        return self.costs

    def _measure(self, after: Graph) -> bool:
        """Whether the graph has parts of which `costs` did not know."""
        check_element_wise(self.task.optimizer, after)
        before, measured = self.task.graph, False
        keys = {name: operator_key(after, after.nodes[name]) for name in new_nodes(before, after)}
        for kind, own in self.costs.devices.items():
            ranks = [rank for rank, device in enumerate(self.cluster.devices) if device.kind == kind]
            if own.rates is None and ranks and before.nodes.keys() <= own.nodes.keys():
                self._measure_on(kind, ranks[0], after, keys)
                measured |= not own.parts.keys() >= set(keys.values())
        return measured

    def _measure_on(self, kind: str, rank: int, graph: Graph, keys: dict[str, str]) -> None:
        digest = parts_digest(identity_of(self.pool(), rank), in_flight=self.task.in_flight)
        known = self.known.get(kind) or self.cache.get(digest, dict[str, PartCosts]) or {}
        names = {key: name for name, key in keys.items() if key not in known}
        more: dict[str, PartCosts] = {}
        if names:
            began, where = time.perf_counter(), self.cluster.devices[rank].name
            words = f"measuring {len(names)} operators in parts on {where}"
            log.info("%s", words)
            self.notify(words)
            sent, task = replace(graph, output_spec=None), self.task
            batch = tuple(tensor.clone() for tensor in task.batch)  # of a larger one, perhaps
            measured = self.pool().call_one(
                rank, _measure, sent, batch, task.values, sorted(names.values()), task.in_flight
            )
            more = {key: measured[name] for key, name in names.items()}
            kept = self.cache.get(digest, dict[str, PartCosts]) or {}  # of other graphs, perhaps since then
            self.cache.put(digest, {**kept, **known, **more})
            log.info("measured operators in parts in %.1f s", time.perf_counter() - began)
        self.known[kind] = {**known, **more}


def _measure(
    worker: Worker,
    graph: Graph,
    batch: tuple[Tensor, ...],
    wholes: dict[str, Tensor],
    names: list[str],
    in_flight: int,
) -> dict[str, PartCosts]:
    """Measure on one worker alone; a part of a parameter has memory of its own, as in training."""
    values = {
        k: init.within(wholes) if init.region is None else init.within(wholes).contiguous().clone()
        for k, init in graph.initializers.items()
    }
    return profile_parts(graph, batch, values, names, MOVES, worker.torch_device, in_flight)
