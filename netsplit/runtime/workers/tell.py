"""Workers are told torch's settings, and sent what this process has changed of what they import."""

from __future__ import annotations

from typing import Any

from netsplit.graph.ir import Graph
from netsplit.graph.surroundings.settings import settings, take_settings
from netsplit.graph.surroundings.surroundings import carried_modules
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker

__all__ = ["tell"]


def tell(pool: WorkerPool, graphs: list[Graph], *others: Any) -> None:
    """Before they are sent graphs, an optimiser and such, whose code then finds what it finds here."""
    calls = [call for graph in graphs for call in graph.calls.values()]
    pool.carried |= dict.fromkeys(carried_modules([*calls, *(each for each in others if each is not None)]))
    pool.call(_take, settings())


def _take(worker: Worker, given: dict[str, Any]) -> None:
    del worker
    take_settings(given)
