"""The chain of sections: its bounds are at most the enumerated optimum; small ones by hand."""

import random
import time
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings

from netsplit.partition.base import Problem
from netsplit.partition.bounds.latency_chain import chain_bound, chain_of
from netsplit.partition.bounds.latency_fold import fold
from netsplit.partition.bounds.latency_sections import sections_of, steps_of
from netsplit.partition.common.instance import Instance
from netsplit.partition.common.step_graph import StepGraph
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from tests.builders import chain, cluster_of, costs_of, graph_fed
from tests.examples import tried
from tests.partition.brute_force import least_latency
from tests.partition.methods.exact.test_netsplit_exact import quick, steps


@pytest.mark.parametrize("seed", range(1, 31))
def test_no_bound_exceeds_the_optimum_of_a_chain_without_bytes_on_its_edges(seed: int) -> None:
    """Steps that change the device add no bytes but the node's own: a run on a device ends there."""
    draw = random.Random(seed)
    n = draw.choice([4, 5, 6, 8])
    weights = {f"n{i}": draw.randrange(1, 400) for i in range(n)}
    graph = chain([0] * (n - 1), weights)
    a, b = ({v: NodeSeconds(draw.uniform(0.1, 2.0), 0.0) for v in graph.nodes} for _ in range(2))
    costs = Costs({"a": DeviceCosts(a), "b": DeviceCosts(b)}, 1)
    capacities = [int(sum(weights.values()) * draw.uniform(0.3, 0.8)) for _ in range(2)]
    cluster = cluster_of(capacities, draw.uniform(0.1, 1.0), 0.0, kinds=("a", "b"))
    instance = Instance.of(Problem(graph, costs, cluster))
    fitting = [where for where in product(range(2), repeat=n) if instance.fits(np.array(where))]
    folded = fold(StepGraph(instance))
    assert folded is not None
    if not fitting:
        return
    hops = instance.latency_s
    best = min(
        sum(instance.forward_s[v, p] for v, p in enumerate(where))
        + sum(hops[p, q] for p, q in pairwise(where) if p != q)
        for where in fitting
    )
    bounded = chain_of(folded, 1.3 * best, 1000, time.perf_counter() + 60)
    assert bounded is not None
    for buckets in (16, 24, 40, 64, 100):
        bound = bounded.bound(buckets, 10**5, time.perf_counter() + 60)
        assert bound is not None
        assert bound <= best * (1 + 1e-9)


@settings(quick, max_examples=tried(25))
@given(problem=steps(max_nodes=6))
def test_no_bound_exceeds_the_optimum(problem):
    instance = Instance.of(problem)
    best = least_latency(instance)
    folded = fold(graph := StepGraph(instance))
    if best is None or folded is None:
        return
    most = best[0] * (1 + 1e-12) + 1e-12
    for width in (1, 1000):
        for limit_s in (1.01 * best[0] + 1e-9, 3 * best[0] + 1):
            chain = chain_of(folded, limit_s, width, time.perf_counter() + 60)
            if chain is None and width == 1:  # more states than that are open at once
                continue
            assert chain is not None
            assert min(chain.ahead[0][0], limit_s) <= most
            for buckets in (2, 9, 700):
                bound = chain.bound(buckets, 10**5, time.perf_counter() + 60)
                assert bound is not None
                assert bound <= most
    assert chain_bound(graph, best[0], time.perf_counter() + 0.05)[0] <= most


def fanned(draw: random.Random, branches: int) -> Problem:
    """source -> nodes beside one another -> join -> loss, with transfers that pay off or do not."""
    middle = {f"b{i}": ["a"] for i in range(branches)}
    late = {f"c{i}": [f"b{i}"] for i in range(branches) if draw.random() < 0.4}
    ends = [f"c{i}" if f"c{i}" in late else f"b{i}" for i in range(branches)]
    graph = graph_fed({"a": [], **middle, **late, "join": ends, "loss": ["join"]})
    seconds = {v: NodeSeconds(draw.uniform(0.1, 1.0), draw.uniform(0.1, 2.0)) for v in graph.nodes}
    slow = DeviceCosts(seconds)
    costs = Costs({"cpu": slow, "gpu": slow.scaled(draw.uniform(1.0, 2.0))}, 1)
    cluster = cluster_of(
        [1000, 1000], draw.choice([0.0, 0.2, 1.0]), 0.0, kinds=("cpu", draw.choice(["cpu", "gpu"]))
    )
    return Problem(graph, costs, cluster)


@pytest.mark.parametrize("seed", range(8))
def test_of_a_section_on_devices_that_do_one_thing_at_a_time_no_bound_exceeds_the_optimum(seed: int) -> None:
    draw = random.Random(seed)
    instance = Instance.of(fanned(draw, 3))
    best = least_latency(instance)
    assert best is not None
    graph = StepGraph(instance)
    for most_s in (best[0], 1.5 * best[0]):
        bound_s, _ = chain_bound(graph, most_s, time.perf_counter() + 3)
        assert bound_s <= best[0] * (1 + 1e-9)
    assert bound_s >= 0.8 * best[0]


def test_nodes_beside_one_another_take_turns_where_transfers_take_longer() -> None:
    graph = graph_fed(
        {"a": [], **{f"b{i}": ["a"] for i in range(8)}, "join": [f"b{i}" for i in range(8)], "loss": ["join"]}
    )
    problem = Problem(graph, costs_of(graph), cluster_of([1000] * 3, 30.0, 0.0))
    bound_s, _ = chain_bound(StepGraph(Instance.of(problem)), 40.0, time.perf_counter() + 10)
    assert bound_s == pytest.approx(33.0, rel=1e-4)  # 11 nodes of 3 seconds


def test_on_a_chain_the_bound_is_the_optimum():
    graph = chain([30, 5, 30])
    step = StepGraph(Instance.of(Problem(graph, costs_of(graph), cluster_of([75, 75], 0.0, 0.01))))
    assert chain_bound(step, 100.0, time.perf_counter() + 5)[0] == pytest.approx(4.05)


def test_a_run_on_one_device_loses_two_buckets_at_most():
    # 40 nodes of 10 bytes each; a device holds 210: rounded alone, no node would fill a bucket of 26.
    graph = chain([10] * 40)
    step = StepGraph(Instance.of(Problem(graph, costs_of(graph), cluster_of([210, 280], 0.0, 0.01))))
    folded = fold(step)
    assert folded is not None
    assert len(sections_of(folded)) == folded.count
    bounded = chain_of(folded, 1e6, 1000, time.perf_counter() + 60)
    assert bounded is not None
    free = bounded.ahead[0][0]
    bound = bounded.bound(10, 10**5, time.perf_counter() + 60)
    assert bound is not None
    assert bound > free


def test_steps_of_a_section_have_the_bytes_of_received_copies():
    graph = chain([30, 5])
    instance = Instance.of(Problem(graph, costs_of(graph), cluster_of([500, 500], 0.0, 0.01)))
    folded = fold(StepGraph(instance))
    assert folded is not None
    first, second = sections_of(folded)[:2]
    inf = float("inf")
    steps = steps_of(folded, second, np.array([0.0, inf]), inf, 100, time.perf_counter() + 60)
    assert steps is not None
    assert first.target == second.source
    by_target = {int(t): used.tolist() for t, used in zip(steps.target, steps.used, strict=True)}
    own = float(folded.own[second.nodes[-1]])
    assert by_target[0] == [own, 0.0]
    assert by_target[1] == [0.0, own + 60.0]  # two copies
