"""Worker processes that many tests have one after another: starting them takes seconds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from netsplit.cluster.local import ClusterSpec, LocalDevice, local_cluster
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs
from netsplit.runtime.transport.neighbours import Neighbours
from netsplit.runtime.workers.messages import Worker
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.session.costs import MeasuredCosts
from netsplit.session.session import Session

__all__ = ["LentPool", "Pools", "by_gloo", "cpu_workers", "lent_session", "lent_to_sessions", "set_costs"]

Pools = Callable[[int], WorkerPool]


def cpu_workers(count: int) -> ClusterSpec:
    return local_cluster(f"cpu{count}", [LocalDevice(f"cpu:{rank}") for rank in range(count)], timeout_s=30)


class LentPool:
    """A pool that others use after its user, who closes it as if it were the user's own."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    @property
    def connections(self) -> list[Any]:
        return [] if self._closed else self._pool.connections

    def close(self, reason: str = "") -> None:
        self._closed = True


def lent_session(pools: Pools, folder: Path) -> Session:
    """A session on two lent workers; if they fail it starts its own."""
    return Session(cpu_workers(2), folder, _pool=LentPool(pools(2)))  # type: ignore[arg-type]


def set_costs(patch: pytest.MonkeyPatch, costs: Callable[[Graph], Costs]) -> None:
    """Sessions take these for what a graph costs, and measure nothing."""
    patch.setattr(MeasuredCosts, "of", lambda here, task, alone=False: costs(task.graph))


@contextmanager
def by_gloo(pool: WorkerPool) -> Iterator[WorkerPool]:
    """The pool with workers that, as between hosts, cannot read one another's memory."""
    pool.call(_part)
    try:
        yield pool
    finally:
        pool.call(_meet)


def _part(worker: Worker) -> None:
    worker.neighbours = Neighbours()


def _meet(worker: Worker) -> None:
    worker.neighbours = Neighbours.meet(worker.rank)


@contextmanager
def lent_to_sessions(pools: Pools) -> Iterator[None]:
    """Sessions that begin meanwhile, as that of `parallelize`, are lent their workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "netsplit.session.session.WorkerPool",
            lambda spec, _, again=False: LentPool(pools(len(spec.devices))),
        )
        yield
