"""`netsplit_exact` against the simulator itself, on every placement and every order."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.errors import InfeasibleError
from netsplit.partition import NetSplitExact, Problem
from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.methods.exact import netsplit_exact
from netsplit.partition.methods.exact.netsplit_exact import solve_latency
from netsplit.program import SingleBatch
from netsplit.simulate import simulate
from tests.builders import behind_nics, compile_placed
from tests.partition.brute_force import arrays, iteration, least_latency
from tests.partition.builders import large_problem, problems, trained


def test_the_time_limit_of_the_problem_takes_precedence(monkeypatch):
    given_s = []

    def solve(instance, time_limit_s, *more, **options):
        given_s.append(time_limit_s)
        return solve_latency(instance, 1.0, *more, **options)

    monkeypatch.setattr(netsplit_exact, "solve_latency", solve)
    problem = replace(large_problem(100), time_limit_s=100.0)
    report = NetSplitExact(time_limit_s=600).partition(problem).report
    assert 0 < given_s[0] <= 100.0
    assert report.bound is not None
    assert 0 < report.bound <= report.objective


quiet = settings(deadline=None, suppress_health_check=list(HealthCheck))


def orders(instance: Instance) -> list[tuple[int, ...]]:
    before = [set(instance.predecessors[v].tolist()) for v in range(instance.n)]
    return [
        order
        for order in itertools.permutations(range(instance.n))
        if all(before[v] <= set(order[:i]) for i, v in enumerate(order))
    ]


def placements(instance: Instance) -> list[Ints]:
    devices = range(len(instance.devices))
    every = itertools.product(devices, repeat=len(instance.atoms))
    made = (np.array(choice, np.int64)[instance.atom_of] for choice in every)
    return [where for where in made if instance.fits(where)]


def simulated_s(problem: Problem, instance: Instance, where: Ints, order: tuple[int, ...]) -> float:
    priority = {instance.names[v]: i for i, v in enumerate(order)}
    program = compile_placed(problem.graph, instance.decode(where), priority, problem.cluster, SingleBatch())
    return simulate(program, problem.cluster, problem.costs).iteration_s


@settings(quiet, max_examples=20)
@given(
    problem=problems(max_nodes=4, max_devices=3).map(trained), seed=st.integers(0, 10**6), nics=st.booleans()
)
def test_its_seconds_are_the_simulators_and_its_bound_holds(problem: Problem, seed: int, nics: bool) -> None:
    if nics:  # of which the model knows nothing
        problem = replace(problem, cluster=behind_nics(problem.cluster, random.Random(seed)))
    instance = Instance.of(problem)
    best = min(
        (
            simulated_s(problem, instance, where, order)
            for where in placements(instance)
            for order in orders(instance)
        ),
        default=math.inf,
    )
    try:
        report = NetSplitExact(time_limit_s=300.0).partition(problem).report
    except InfeasibleError:
        assert best == math.inf
        return
    assert report.objective is not None
    assert report.bound is not None
    assert report.objective >= best * (1 - 1e-9)
    assert report.bound <= best * (1 + 1e-9) + 1e-12
    if report.status == "optimal":
        assert report.objective == pytest.approx(best, rel=1e-4, abs=1e-12)


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
    assert answer.where is not None
    assert instance.fits(answer.where)
    ticks = 4 * (instance.n + 1)  # what a node computes, sends, receives and steps is rounded down to ticks
    tolerance = 1e-9 + 1e-4 * best[0] + ticks * answer.notes.get("tick_s", 0.0)
    own = iteration(answer.where, answer.order, arrays(instance))
    assert best[0] - 1e-9 <= own <= answer.value_s + 1e-9
    assert best[0] - tolerance <= answer.bound_s <= best[0] + 1e-12 + 1e-12 * best[0]
    if answer.status == "optimal":
        assert own == pytest.approx(best[0], abs=tolerance)


@settings(quiet, max_examples=15)
@given(problem=steps())
def test_it_equals_brute_force(problem):
    assert_equals_enumeration(problem)
