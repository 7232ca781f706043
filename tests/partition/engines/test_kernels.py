"""A compiled step is the simulator's, bit for bit, under every schedule it knows."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.cluster.cluster import Link
from netsplit.graph import capture
from netsplit.graph.ir import Graph
from netsplit.graph.operators import unchanging
from netsplit.graph.quotient import topological_priority
from netsplit.partition import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.engines.anneal import Annealer
from netsplit.partition.engines.kernels import CompiledStep
from netsplit.placement.placement import Placement, SolverReport
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import GPipe, Schedule, SingleBatch
from netsplit.program.schedules import EagerOneFOneB, OneFOneB
from netsplit.rewrite import ReadWeights, applied
from netsplit.simulate.simulator import Simulator
from tests.builders import behind_nics, linked
from tests.cover import few
from tests.examples import tried
from tests.nets import CASES, placements
from tests.partition.builders import disturbed, large_problem, problems, trained


def of_one(microbatches: int) -> Schedule:
    return SingleBatch()


Known = Callable[[int], Schedule]  # of so many micro-batches
KNOWN = (of_one, GPipe, OneFOneB, EagerOneFOneB)


def simulated(problem: Problem, schedule: Schedule) -> Simulator:
    """Without exchanges, of which compiled steps do not know."""
    schedule = replace(schedule, exchange="send_receive")
    return Simulator(problem.graph, problem.cluster, problem.costs, schedule)


def seconds(evaluate: Simulator, device_of: Mapping[str, str], priority: Mapping[str, int]) -> float:
    placement = Placement("drawn", dict(device_of), dict(priority), SolverReport("feasible", 0.0))
    return evaluate(placement).iteration_s


@settings(max_examples=tried(260), deadline=None)
@given(
    problem=problems(max_nodes=9, max_devices=4),
    schedule=st.builds(lambda known, m: known(m), st.sampled_from(KNOWN), st.integers(1, 5)),
    seed=st.integers(0, 10**6),
    fraction=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_an_iteration_takes_what_the_simulator_says(
    problem: Problem, schedule: Schedule, seed: int, fraction: float
) -> None:
    draw = random.Random(seed)
    problem = disturbed(trained(problem, fraction, seed), draw)
    if draw.random() < 0.5:
        problem = replace(problem, cluster=behind_nics(problem.cluster, draw))
    evaluate, instance = simulated(problem, schedule), Instance.of(problem)
    step = CompiledStep(instance, evaluate.turns)
    where = np.array([draw.randrange(len(instance.devices)) for _ in range(instance.n)])
    where = where[[int(instance.atoms[a][0]) for a in instance.atom_of]]
    assert evaluate.turns.exact
    for drawn in (True, False):
        if drawn:
            priority = topological_priority(problem.graph, {v: draw.random() for v in instance.names})
            order = np.argsort([priority[v] for v in instance.names])
        else:
            order = step.evaluate(where)[1]
            priority = {instance.names[v]: i for i, v in enumerate(order)}
        assert step.makespan_s(where, order) == seconds(evaluate, instance.decode(where), priority)


@cache
def captured(name: str) -> Graph:
    case = CASES[name]
    return capture(case.fresh(), case.loss, case.batch())


@pytest.mark.parametrize("name", ["attention", "tied"])
@settings(max_examples=tried(60), deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_so_it_does_for_what_is_sent_once_for_all_microbatches(
    name: str, data: st.DataObject, seed: int
) -> None:
    """Weights that are read elsewhere, and pieces of them; their gradients are added up by the readers."""
    graph, draw = captured(name), random.Random(seed)
    for reader in draw.sample([node.name for node in graph if node.kind in ("linear", "layer_norm")], 2):
        graph = applied(graph, (*graph.rewrites, ReadWeights(reader)))
    assert unchanging(graph)
    times = {v: NodeSeconds(draw.random(), draw.random()) for v in graph.nodes}
    cluster = linked(("cpu:0", "cpu:1", "cpu:2"), Link(0.01, 1e-4))
    problem = Problem(graph, Costs({cluster.devices[0].kind: DeviceCosts(times)}, 2), cluster)
    problem = disturbed(problem, draw)
    device_of, priority = data.draw(placements(graph, 3))
    evaluate, instance = simulated(problem, draw.choice(KNOWN)(draw.randint(1, 4))), Instance.of(problem)
    assert evaluate.turns.exact
    order = np.argsort([priority[v] for v in instance.names])
    step = CompiledStep(instance, evaluate.turns).makespan_s(instance.encode(device_of), order)
    assert step == seconds(evaluate, device_of, priority)


@pytest.mark.parametrize("name", few(list(CASES), 4))
@settings(max_examples=9, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_so_it_does_for_captured_models(name: str, data: st.DataObject, seed: int) -> None:
    """They have units, views, several outputs of a node, inputs without a gradient, weights of two nodes."""
    graph, draw = captured(name), random.Random(seed)
    times = {v: NodeSeconds(draw.random(), draw.random()) for v in graph.nodes}
    cluster = linked(("cpu:0", "cpu:1", "cpu:2"), Link(0.01, 1e-4))
    problem = Problem(graph, Costs({cluster.devices[0].kind: DeviceCosts(times)}, 2), cluster)
    problem = disturbed(problem, draw)
    device_of, priority = data.draw(placements(graph, 3))
    evaluate, instance = simulated(problem, draw.choice(KNOWN)(draw.randint(2, 4))), Instance.of(problem)
    order = np.argsort([priority[v] for v in instance.names])
    step = CompiledStep(instance, evaluate.turns).makespan_s(instance.encode(device_of), order)
    assert step == seconds(evaluate, device_of, priority)


@pytest.mark.parametrize("known", KNOWN)
def test_what_is_annealed_is_what_the_simulator_says(known: Known) -> None:
    problem = trained(large_problem(30, devices=3, room=4.0), 1.0)
    evaluate, instance = simulated(problem, known(4)), Instance.of(problem)
    draw = np.random.default_rng(0)
    start = draw.integers(0, 3, len(instance.atoms))[instance.atom_of]
    annealer = Annealer(instance, evaluate.turns)
    places = annealer.run(start, 3000, seed=1)
    priority = {instance.names[v]: i for i, v in enumerate(places.order)}
    assert places.value_s == seconds(evaluate, instance.decode(places.where), priority)
    assert places.value_s < annealer.step.evaluate(start)[0]


def test_a_schedule_that_compiled_steps_do_not_know_is_like_one_they_know() -> None:
    problem = large_problem(3)
    recomputing = simulated(problem, GPipe(4, recompute=True)).turns
    assert (recomputing.schedule, recomputing.microbatches, recomputing.exact) == ("gpipe", 4, False)
    assert not replace(simulated(problem, GPipe(4)), shared_norm=True).turns.exact
