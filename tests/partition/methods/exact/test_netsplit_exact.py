"""`netsplit_exact` against enumeration: same optimum, same verdict on memory; a law of its bounds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.exact import netsplit_exact
from netsplit.partition.methods.exact.netsplit_exact import NetSplitExact, solve_latency
from tests.builders import chain, cluster_of, costs_of
from tests.partition.builders import large_problem, problems


@st.composite
def steps(draw: st.DrawFn, max_nodes: int = 5, max_devices: int = 3) -> Problem:
    """Problems of which some variables carry gradients, with optimiser steps."""
    problem = draw(problems(max_nodes, max_devices))
    training = draw(st.booleans())
    variables = {
        k: replace(v, requires_grad=training and draw(st.integers(0, 4)) > 0)
        for k, v in problem.graph.variables.items()
    }
    costs = problem.costs
    for kind in ("cpu", "gpu"):
        costs = costs.with_device(kind, step_s_per_byte=draw(st.floats(0.0, 0.05)))
    return replace(problem, graph=replace(problem.graph, variables=variables), costs=costs)


def test_fixed_nodes_stay_where_they_are():
    graph = chain([1, 1])
    instance = Instance.of(Problem(graph, costs_of(graph), cluster_of([100, 100])))
    answer = solve_latency(instance, 10.0, fixed=np.array([1, -1, 0]))
    assert answer.where is not None
    assert (answer.where[0], answer.where[2]) == (1, 0)
    assert answer.value_s == pytest.approx(3.01)


def test_the_time_limit_of_the_problem_takes_precedence(monkeypatch):
    given_s = []

    def solve(instance, time_limit_s, *more, **options):
        given_s.append(time_limit_s)
        return solve_latency(instance, time_limit_s, *more, **options)

    monkeypatch.setattr(netsplit_exact, "solve_latency", solve)
    problem = replace(large_problem(100), time_limit_s=2.0)
    report = NetSplitExact(time_limit_s=600).partition(problem).report
    assert 0 < given_s[0] <= 2.0
    assert report.bound is not None
    assert 0 < report.bound <= report.objective
