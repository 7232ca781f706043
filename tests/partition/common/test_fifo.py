"""Operators in the order in which they become ready, beside a clock that is looked at all the time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.partition import Dpos, Problem
from netsplit.partition.common.fifo import fifo_starts
from netsplit.partition.common.instance import Instance
from netsplit.planning.verify import verify
from tests.examples import tried
from tests.partition.builders import problems

examples = settings(max_examples=tried(60), deadline=None, suppress_health_check=list(HealthCheck))


def by_definition(instance: Instance, where: Sequence[int]) -> dict[int, float]:
    """Starts, one after the other: of what is ready, on each device what came first."""
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    free = [0.0] * len(instance.devices)
    while len(start) < instance.n:
        options = []
        for v in range(instance.n):
            p = where[v]
            feeds = [(int(instance.producer[k]), int(k)) for k in instance.reads[v]]
            if v in start or any(u not in end for u, _ in feeds):
                continue
            message_s = instance.latency_s[:, p] + instance.nbytes[:, None] * instance.seconds_per_byte[:, p]
            came = [end[u] + (where[u] != p) * message_s[k, where[u]] for u, k in feeds]
            ready = max(came, default=0.0)
            options.append((max(ready, free[p]), ready, v))
        # The one that starts first of all cannot be overtaken; on its device it is the first that came.
        begin, _, v = min(options)
        start[v] = begin
        end[v] = free[where[v]] = begin + float(instance.forward_s[v, where[v]])
    return start


@examples
@given(problems(roomy=True, colocate=False), st.data())
def test_starts_are_those_by_definition(problem: Problem, data: st.DataObject) -> None:
    instance = Instance.of(problem)
    place = st.integers(0, len(instance.devices) - 1)
    where = data.draw(st.lists(place, min_size=instance.n, max_size=instance.n))
    starts = fifo_starts(instance, where)
    wanted = by_definition(instance, where)
    assert [starts[name] for name in instance.names] == pytest.approx([wanted[v] for v in range(instance.n)])


@examples
@given(problems())
def test_a_queues_order_verifies(problem: Problem) -> None:
    instance = Instance.of(problem)
    if not np.all(instance.capacity > instance.state_bytes.sum() + instance.held_bytes.sum()):
        return
    verify(problem, Dpos(order="fifo").partition(problem)).require()
