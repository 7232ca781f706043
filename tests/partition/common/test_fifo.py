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
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from tests.builders import cluster_of, graph_of
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


def test_an_operator_of_no_seconds_lets_its_reader_in_before_a_later_one() -> None:
    graph = graph_of(["n0", "n1", "n2"], [("n0", 0, ["n1"])])
    costs = Costs(
        {
            "cpu": DeviceCosts(
                {"n0": NodeSeconds(0.0, 0.0), "n1": NodeSeconds(0.0, 0.0), "n2": NodeSeconds(1.0, 0.0)}
            )
        },
        2,
    )
    problem = Problem(graph, costs, cluster_of([10**6]))
    assert fifo_starts(Instance.of(problem), [0, 0, 0]) == {"n0": 0.0, "n1": 0.0, "n2": 0.0}


def fork() -> Problem:
    """n1 is ready first; n2, ready just after it, has the long way to go, through n3 on the other device."""
    graph = graph_of(["n0", "n1", "n2", "n3"], [("n0", 0, ["n1"]), ("n0", 0, ["n2"]), ("n2", 0, ["n3"])])
    each = {"n0": 1.0, "n1": 5.0, "n2": 1.0, "n3": 9.0}
    costs = Costs({"cpu": DeviceCosts({v: NodeSeconds(s, 0.0) for v, s in each.items()})}, 2)
    return Problem(graph, costs, cluster_of([10**6]))


def test_an_enforced_order_runs_the_long_way_first_and_the_queue_does_not() -> None:
    problem = fork()
    first, queued = (Dpos(order=order).partition(problem) for order in ("priority", "fifo"))
    assert first.device_of == queued.device_of
    assert first.priority["n2"] < first.priority["n1"]
    assert queued.priority["n1"] < queued.priority["n2"]


@examples
@given(problems())
def test_a_queues_order_verifies(problem: Problem) -> None:
    instance = Instance.of(problem)
    if not np.all(instance.capacity > instance.state_bytes.sum() + instance.held_bytes.sum()):
        return
    verify(problem, Dpos(order="fifo").partition(problem)).require()
