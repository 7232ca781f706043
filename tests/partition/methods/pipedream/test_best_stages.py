"""Stages that are never worse by PipeDream's formula than its planner's."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import InfeasibleError
from netsplit.partition.common.instance import Instance
from netsplit.partition.common.layers import Layers
from netsplit.partition.methods.pipedream import best_stages as best_stages_module
from netsplit.partition.methods.pipedream.best_stages import best_stages, lower_bound_s
from netsplit.partition.methods.pipedream.pipedream import PipeDream
from netsplit.partition.methods.random import Random
from netsplit.partition.stage_time import Formula, levels_of, stage_time_s
from tests.partition.builders import large_problem, problems
from tests.partition.stage_problems import chain_problem, devices, plans, slowest


@settings(max_examples=40, deadline=None)
@given(
    problem=problems(max_devices=4, roomy=True),
    split=st.booleans(),
    cost=st.sampled_from(["released", "paper"]),
    transfers=st.booleans(),
)
def test_the_best_stages_are_never_worse_than_the_planners_nor_better_than_the_bound(
    problem, split, cost, transfers
):
    count = len(problem.cluster.devices)
    if split and count == 4:
        problem = replace(problem, cluster=replace(problem.cluster, levels=((2, 100.0), (2, 20.0))))
    try:
        theirs = PipeDream(cost=cost, count_transfers=transfers).partition(problem)
    except InfeasibleError:
        return
    if not theirs.stages:
        return
    ours = best_stages(problem, 5.0, cost, transfers)
    score = stage_time_s(problem, ours, cost, transfers)
    assert score == pytest.approx(ours.objective_s)
    assert score <= theirs.report.objective * (1 + 1e-9)
    assert score >= lower_bound_s(Layers.of(problem), Formula(levels_of(problem), cost)) * (1 - 1e-9)
    assert score >= ours.bound_s * (1 - 1e-9)
    assert Instance.of(problem).stages_fit(ours.stages)


@settings(max_examples=30, deadline=None)
@given(
    seconds=st.lists(st.floats(0.1, 9.0), min_size=1, max_size=5),
    tensors=st.lists(st.integers(0, 40), min_size=4, max_size=4),
    weights=st.lists(st.integers(0, 60), min_size=5, max_size=5),
    count=st.integers(1, 4),
)
def test_on_chains_the_best_stages_are_the_best_of_all(seconds, tensors, weights, count):
    n = len(seconds)
    tensors, weights = tensors[: n - 1], weights[:n]
    problem = chain_problem(seconds, tensors, weights, devices(count, 10.0))
    every = [plan for m in range(1, count + 1) for plan in plans(n, m)]
    least = min(slowest(plan, seconds, tensors, weights, 10.0, "released") for plan in every)
    answer = best_stages(problem, 5.0)
    assert answer.status == "optimal"
    assert answer.objective_s == pytest.approx(least)


def test_a_large_graph_is_searched_for_as_long_as_the_time_lasts():
    problem = large_problem(300, 4)
    theirs = PipeDream(max_states=200).partition(problem)
    ours = best_stages(problem, 2.0)
    assert ours.objective_s <= theirs.report.objective
    assert ours.bound_s <= ours.objective_s
    assert stage_time_s(problem, ours) == pytest.approx(ours.objective_s)


def test_a_scattered_placement_is_no_faster_than_the_contiguous_bound_of_its_work():
    problem = large_problem(60, 3)
    placement = Random().partition(problem)
    assert stage_time_s(problem, placement) >= lower_bound_s(
        Layers.of(problem), Formula(levels_of(problem), "released")
    ) * (1 - 1e-9)


def test_a_time_too_short_for_the_planners_states_gives_stages_all_the_same(monkeypatch):
    """A clock that goes on by a millisecond a look: the search looks often, and ends soon after its time."""
    problem = large_problem(400, 4)
    ours = best_stages(problem, 0.0)
    assert Instance.of(problem).stages_fit(ours.stages)
    assert stage_time_s(problem, ours) == pytest.approx(ours.objective_s)
    ticks = itertools.count(1)
    monkeypatch.setattr(best_stages_module, "time", SimpleNamespace(perf_counter=lambda: 1e-3 * next(ticks)))
    later = best_stages(problem, 1.5)
    assert next(ticks) < 1500 + 10
    assert later.objective_s <= ours.objective_s
