"""Workers are told what this process has changed of what they import: see `Surroundings`."""

from __future__ import annotations

from typing import Any

from netsplit.graph.ir import Graph
from netsplit.graph.surroundings.surroundings import Surroundings, surroundings_of
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker

__all__ = ["tell"]


def tell(pool: WorkerPool, graphs: list[Graph], *others: Any) -> None:
    """Before they are sent graphs, an optimiser and such, whose code then finds what it finds here."""
    calls = [call for graph in graphs for call in graph.calls.values()]
    pool.call(_take, surroundings_of([*calls, *(each for each in others if each is not None)]))


def _take(worker: Worker, surroundings: Surroundings) -> None:
    del worker
    surroundings.take()
