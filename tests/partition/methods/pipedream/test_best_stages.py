"""Stages that are never worse by PipeDream's formula than its planner's."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import InfeasibleError
from netsplit.partition.common.instance import Instance
from netsplit.partition.common.layers import Layers
from netsplit.partition.methods.pipedream.best_stages import best_stages, lower_bound_s
from netsplit.partition.methods.pipedream.pipedream import PipeDream
from netsplit.partition.stage_time import Formula, levels_of, stage_time_s
from tests.partition.builders import problems
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
