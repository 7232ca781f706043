"""Models split over two workers that many tests have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import netsplit
from netsplit.training.parallel import ParallelModel
from tests.workers import Pools, lent_to_sessions

__all__ = ["Split"]

Split = Callable[..., ParallelModel]


@pytest.fixture
def lent(pools: Pools, unmeasured: None) -> Iterator[None]:
    """Whatever is split meanwhile is on workers that are lent, and its operators are not measured."""
    with lent_to_sessions(pools):
        yield


@pytest.fixture
def options(lent: None) -> dict[str, Any]:
    """Options of a split over two workers whose links are stated and whose plan takes no search."""
    cluster = replace(netsplit.cpu_cluster(2), latency_s=1e-5, bandwidth=1e9)
    return {"cluster": cluster, "partitioner": "balanced", "schedule": "gpipe"}


@pytest.fixture
def split(options: dict[str, Any]) -> Iterator[Split]:
    """`netsplit.parallelize` with these options; what it gave is closed at the end."""
    made: list[ParallelModel] = []

    def parallelize(*args: Any, **more: Any) -> ParallelModel:
        made.append(netsplit.parallelize(*args, **(options | more)))
        return made[-1]

    yield parallelize
    for each in made:
        each.close()
