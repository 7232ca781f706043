"""Bounds are at most the enumerated optimum, for every placement problem and any incumbent."""

import random
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.partition.base import Problem
from netsplit.partition.bounds.latency_bounds import (
    critical_path_s,
    least_load_s,
    never_cut,
    relaxation,
)
from netsplit.partition.bounds.latency_diagram import OutOfTime, diagram_bound, node_order
from netsplit.partition.bounds.latency_relaxed import RelaxedModel
from netsplit.partition.common.instance import Instance
from netsplit.partition.common.step_graph import Edge, StepGraph
from netsplit.partition.engines.kernels import CompiledStep
from netsplit.partition.methods.auto.auto import Auto
from tests.builders import chain, cluster_of, costs_of
from tests.examples import tried
from tests.partition.brute_force import least_latency
from tests.partition.builders import disturbed, large_problem, problems, trained
from tests.partition.methods.exact.test_netsplit_exact import quick, steps


@settings(quick, max_examples=12)
@given(problem=steps(max_nodes=6))
def test_no_bound_exceeds_the_optimum(problem):
    instance = Instance.of(problem)
    best = least_latency(instance)
    if best is None:
        return
    most = best[0] * (1 + 1e-12) + 1e-12
    graph = StepGraph(instance)
    assert critical_path_s(instance) <= most
    for incumbent in (None, best[0], 1.5 * best[0]):
        assert relaxation(instance, 0.5, 0, incumbent).bound_s <= most
    for width in (1, 5, 1000):
        bound = diagram_bound(graph, 2 * best[0] + 1, width, time.perf_counter() + 60)
        assert bound is not None or width < 1000  # a narrow one gives up where more states are open at once
        assert bound is None or bound <= most


@settings(quick, max_examples=tried(25))
@given(problem=steps(max_nodes=5))
def test_edges_that_are_never_cut_are_not_cut_in_an_optimum(problem):
    instance = Instance.of(problem)
    best = least_latency(instance)
    if best is None:
        return
    for edge, shut in never_cut(StepGraph(instance), best[0]).items():
        p, q = best[1][edge.source], best[1][edge.target]
        assert p == q or not shut[p, q]


def test_on_a_chain_the_relaxation_is_the_optimum():
    graph = chain([30, 5, 30])
    instance = Instance.of(Problem(graph, costs_of(graph), cluster_of([75, 75], 0.0, 0.01)))
    assert diagram_bound(StepGraph(instance), 100.0, 1000, time.perf_counter() + 60) == pytest.approx(4.05)
    relaxed = relaxation(instance, 10.0)
    assert relaxed.bound_s == pytest.approx(4.05, rel=1e-4)
    assert relaxed.where is not None
    assert instance.fits(relaxed.where)


def test_a_narrow_diagram_bounds_less_than_a_wide_one_at_most():
    graph = chain([3, 9, 2, 7, 1, 8, 4, 6, 5], {f"n{i}": 5 + i for i in range(10)})
    instance = Instance.of(Problem(graph, costs_of(graph), cluster_of([120, 90, 80], 0.1, 0.05)))
    step = StepGraph(instance)
    narrow, wide = (diagram_bound(step, 1e3, width, time.perf_counter() + 60) for width in (2, 10**6))
    assert narrow is not None
    assert wide is not None
    assert 10.0 <= narrow <= wide
    assert wide > 10.0 + 0.1


def test_an_edge_whose_transfer_takes_longer_than_is_left_is_never_cut():
    graph = chain([10, 100])
    step = StepGraph(Instance.of(Problem(graph, costs_of(graph), cluster_of([500, 500], 0.0, 0.01))))
    shut = never_cut(step, 3.5)  # 3 seconds of work
    assert not shut[Edge(0, 1)].any()
    assert shut[Edge(1, 2)].tolist() == [[False, True], [True, False]]


@quick
@given(problem=problems())
def test_the_order_of_the_diagram_is_topological(problem):
    instance = Instance.of(problem)
    order = node_order(StepGraph(instance))
    rank = {v: k for k, v in enumerate(order)}
    assert sorted(order) == list(range(instance.n))
    assert all(rank[int(p)] < rank[v] for v in order for p in instance.predecessors[v])


@pytest.mark.parametrize("count", [16, 24, 59, 60])
def test_with_many_devices_a_chain_on_one_of_them_is_still_the_bound(count):
    """The present devices of a variable are bits: more than an integer has, and there is no diagram."""
    graph = chain([1, 1, 1])
    problem = Problem(graph, costs_of(graph), cluster_of([10**9] * count))
    step = StepGraph(Instance.of(problem))
    expected = None if count == 60 else pytest.approx(4.0)  # all on one device, nothing is sent
    assert diagram_bound(step, 5.0, 50, time.perf_counter() + 60) == expected


def test_without_time_the_bound_is_the_critical_path_or_the_load():
    instance = Instance.of(large_problem(300))
    least = max(critical_path_s(instance), least_load_s(instance))
    for incumbent in (None, 10 * least):
        relaxed = relaxation(instance, 0.0, incumbent_s=incumbent)
        assert relaxed.bound_s == least
        assert relaxed.notes["relaxation"] == "not built in time"
        assert relaxed.where is None


def test_a_model_that_takes_too_long_to_build_is_given_up():
    step = StepGraph(Instance.of(large_problem(60)))
    serial_s = step.instance.serial_s
    shut = never_cut(step, 2 * serial_s)
    with pytest.raises(OutOfTime):
        RelaxedModel(step, np.arange(step.n), shut, 2 * serial_s, 10**6, deadline=time.perf_counter())
    with pytest.raises(OutOfTime):
        never_cut(step, serial_s, deadline=time.perf_counter())


@settings(quick, max_examples=tried(60))
@given(problem=problems(max_nodes=6, max_devices=4), seed=st.integers(0, 10**6))
def test_no_step_takes_less_than_the_work_of_devices_that_slow_one_another(problem, seed):
    draw = random.Random(seed)
    instance = Instance.of(disturbed(trained(problem, draw.choice([0.0, 0.8, 1.0]), seed), draw))
    where = np.array([draw.randrange(len(instance.devices)) for _ in range(instance.n)])
    where = where[[int(instance.atoms[a][0]) for a in instance.atom_of]]
    step = CompiledStep(instance)
    least = least_load_s(instance)
    assert least <= step.makespan_s(where, step.list_schedule(where)) * (1 + 1e-12) + 1e-12
    for p in range(len(instance.devices)):
        alone = np.full(instance.n, p)
        assert least <= step.makespan_s(alone, np.arange(instance.n)) * (1 + 1e-12) + 1e-12


def test_devices_that_slow_one_another_too_much_are_worth_one():
    graph = chain([1, 1, 1])
    costs = costs_of(graph).with_device("cpu", contention=2.5)
    cluster = cluster_of([100, 100])
    devices = tuple(replace(device, host="here") for device in cluster.devices)
    problem = Problem(graph, costs, replace(cluster, devices=devices))
    work = Instance.of(problem).forward_s + Instance.of(problem).backward_s
    assert least_load_s(Instance.of(problem)) == pytest.approx(work[:, 0].sum())
    assert Auto(time_limit_s=3.0, starts=2).partition(problem).report.status == "optimal"
