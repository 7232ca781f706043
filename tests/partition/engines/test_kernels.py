"""The compiled single-batch step is the simulator's, bit for bit, on random problems and placements."""

import random
from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.cluster.cluster import Link
from netsplit.graph import capture
from netsplit.graph.ir import Graph
from netsplit.partition import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.common.priority import topological_priority
from netsplit.partition.engines.kernels import CompiledStep
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import SingleBatch, compile_program
from netsplit.simulate import simulate
from tests.builders import linked
from tests.examples import tried
from tests.nets import CASES, placements
from tests.partition.builders import disturbed, large_problem, problems, trained


def simulated_s(problem: Problem, device_of: Mapping[str, str], priority: Mapping[str, int]) -> float:
    program = compile_program(problem.graph, device_of, priority, problem.cluster, SingleBatch())
    return simulate(program, problem.cluster, problem.costs).iteration_s


@settings(max_examples=tried(150), deadline=None)
@given(problem=problems(max_nodes=9, max_devices=4), seed=st.integers(0, 10**6), data=st.data())
def test_a_step_takes_what_the_simulator_says(problem: Problem, seed: int, data: st.DataObject) -> None:
    draw = random.Random(seed)
    problem = trained(problem, data.draw(st.sampled_from([0.0, 0.7, 1.0])), seed)
    problem = disturbed(problem, draw)
    instance = Instance.of(problem)
    step = CompiledStep(instance)
    where = np.array([draw.randrange(len(instance.devices)) for _ in range(instance.n)])
    where = where[[int(instance.atoms[a][0]) for a in instance.atom_of]]
    for drawn in (True, False):
        if drawn:
            priority = topological_priority(problem.graph, {v: draw.random() for v in instance.names})
            order = np.argsort([priority[v] for v in instance.names])
        else:
            order = step.list_schedule(where)
            priority = {instance.names[v]: i for i, v in enumerate(order)}
        assert step.makespan_s(where, order) == simulated_s(problem, instance.decode(where), priority)


@pytest.mark.parametrize("seed", range(12))
def test_many_transfers_of_a_large_graph_are_no_exception(seed: int) -> None:
    draw = random.Random(seed)
    problem = trained(large_problem(120, devices=2 + seed % 4, seed=seed), 0.9, seed)
    problem = disturbed(problem, draw)
    instance = Instance.of(problem)
    step = CompiledStep(instance)
    where = np.array([draw.randrange(len(instance.devices)) for _ in range(instance.n)])
    order = step.list_schedule(where)
    priority = {instance.names[v]: i for i, v in enumerate(order)}
    assert step.makespan_s(where, order) == simulated_s(problem, instance.decode(where), priority)


@cache
def captured(name: str) -> Graph:
    case = CASES[name]
    return capture(case.fresh(), case.loss, case.batch())


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_so_it_does_for_captured_models(name: str, data: st.DataObject, seed: int) -> None:
    """They have units, views, several outputs of a node, inputs without a gradient, weights of two nodes."""
    graph, draw = captured(name), random.Random(seed)
    seconds = {v: NodeSeconds(draw.random(), draw.random()) for v in graph.nodes}
    cluster = linked(("cpu:0", "cpu:1", "cpu:2"), Link(0.01, 1e-4))
    problem = Problem(graph, Costs({cluster.devices[0].kind: DeviceCosts(seconds)}, 2), cluster)
    problem = disturbed(problem, draw)
    device_of, priority = data.draw(placements(graph, 3))
    instance = Instance.of(problem)
    order = np.argsort([priority[v] for v in instance.names])
    step = CompiledStep(instance).makespan_s(instance.encode(device_of), order)
    assert step == simulated_s(problem, device_of, priority)
