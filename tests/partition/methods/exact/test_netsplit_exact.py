"""`netsplit_exact` against enumeration: same optimum, same verdict on memory; a law of its bounds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.errors import InfeasibleError
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.exact import netsplit_exact
from netsplit.partition.methods.exact.cp_schedule import latency_of
from netsplit.partition.methods.exact.netsplit_exact import NetSplitExact, solve_latency
from tests.builders import chain, cluster_of, costs_of
from tests.examples import tried
from tests.partition.brute_force import arrays, iteration, least_latency
from tests.partition.builders import large_problem, problems

quick = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


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


def assert_equals_enumeration(problem: Problem) -> None:
    instance = Instance.of(problem)
    best, answer = least_latency(instance), solve_latency(instance, 60.0)
    if best is None:
        assert answer.status == "infeasible"
        assert answer.where is None
        return
    assert answer.status == "optimal"
    assert answer.where is not None
    assert instance.fits(answer.where)
    ticks = 4 * (instance.n + 1)  # what a node computes, sends, receives and steps is rounded down to ticks
    tolerance = 1e-9 + 1e-4 * best[0] + ticks * answer.notes.get("tick_s", 0.0)
    assert answer.value_s == pytest.approx(best[0], abs=tolerance)
    assert iteration(answer.where, answer.order, arrays(instance)) == pytest.approx(answer.value_s)
    assert best[0] - tolerance <= answer.bound_s <= best[0] + 1e-12 + 1e-12 * best[0]


@quick
@given(problem=steps())
def test_it_equals_brute_force(problem):
    assert_equals_enumeration(problem)


@settings(quick, max_examples=tried(100))
@given(problem=steps(max_nodes=8), data=st.data())
def test_the_schedule_is_what_the_plain_loops_say(problem, data):
    instance = Instance.of(problem)
    atoms = data.draw(
        st.lists(
            st.integers(0, len(instance.devices) - 1),
            min_size=len(instance.atoms),
            max_size=len(instance.atoms),
        )
    )
    where = np.array(atoms, np.int64)[instance.atom_of]
    order = np.arange(instance.n)
    assert latency_of(instance, where, order) == pytest.approx(iteration(where, order, arrays(instance)))


def test_a_hint_is_never_made_worse_even_without_time():
    problem = large_problem(60)
    instance = Instance.of(problem)
    first = solve_latency(instance, 1.5)
    assert first.where is not None
    assert first.order is not None
    again = solve_latency(instance, 0.05, hint=(first.where, first.order))
    assert again.value_s <= first.value_s


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


def test_memory_that_no_placement_meets_is_said():
    graph = chain([10, 10])
    with pytest.raises(InfeasibleError, match="missing"):
        NetSplitExact().partition(Problem(graph, costs_of(graph), cluster_of([25, 25])))
