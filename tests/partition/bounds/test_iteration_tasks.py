"""Paths through an edge that is cut, of devices taken by their kinds, are those of devices one by one."""

from __future__ import annotations

import random
import tracemalloc
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.partition import Problem
from netsplit.partition.bounds import iteration_tasks
from netsplit.partition.bounds.iteration_tasks import AnySchedule, IterationTasks
from netsplit.partition.common.instance import Instance
from netsplit.partition.common.step_graph import Edge
from tests.examples import tried
from tests.partition.builders import disturbed, large_problem, problems, trained


def cut_path_s(tasks: IterationTasks, edge: Edge, p: int, q: int) -> float:
    """Of one edge from p to q: the forward's path, the backward's, and that through both."""
    graph, i = tasks.graph, tasks.graph.instance
    (v, w), (sent, returned), n = edge, graph.edges[edge], graph.n
    head, own, tail = tasks.head_s, tasks.fastest_s, tasks.tail_s
    forth = i.latency_s[p, q] + sent * i.seconds_per_byte[p, q] + i.on[p].message_overhead_s
    paths = [head[v] + own[v] + forth + own[w] + tail[w]]
    if returned >= 0:
        back = i.latency_s[q, p] + returned * i.seconds_per_byte[q, p] + i.on[q].message_overhead_s
        paths.append(head[n + w] + own[n + w] + back + own[n + v] + tail[n + v])
        between = tasks._there_and_back()[w]
        paths.append(head[v] + own[v] + forth + between + back + own[n + v] + tail[n + v])
    return float(max(paths))


@pytest.mark.parametrize("at_once", [1, 10**6])
@settings(max_examples=tried(60), deadline=None)
@given(problem=problems(max_nodes=6), seed=st.integers(0, 2**32))
def test_a_cut_is_as_long_as_over_the_best_of_all_pairs(problem: Problem, seed: int, at_once: int) -> None:
    draw = random.Random(seed)
    instance = Instance.of(disturbed(trained(problem, draw.choice([0.0, 0.8, 1.0]), seed), draw))
    tasks = IterationTasks.of(instance, AnySchedule(draw.randint(1, 3)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(iteration_tasks, "_MOST_AT_ONCE", at_once)
        least = tasks.cut_s(AnySchedule())
    pairs = list(permutations(range(len(instance.devices)), 2))
    expected = [
        min((cut_path_s(tasks, edge, p, q) for p, q in pairs), default=np.inf) for edge in tasks.graph.edges
    ]
    np.testing.assert_allclose(least, expected, rtol=1e-12)


def peak_bytes(devices: int) -> int:
    """Of the tables of 1,000 nodes on devices of one kind."""
    instance = Instance.of(trained(large_problem(1000, devices)))
    tracemalloc.start()
    try:
        IterationTasks.of(instance, AnySchedule(4)).cut_s(AnySchedule())
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_devices_that_are_alike_take_no_more_memory_than_few_of_them() -> None:
    assert peak_bytes(64) < 2 * peak_bytes(4)
