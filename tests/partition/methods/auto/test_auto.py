"""`auto`: never worse than the methods it knows, optimal where that can be told, honest about bounds."""

from dataclasses import replace
from itertools import product
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.errors import InfeasibleError
from netsplit.graph.quotient import topological_priority
from netsplit.partition import METHODS, Auto, MTopo, Placement, Problem, SimulatedIteration
from netsplit.partition.common.instance import Instance
from netsplit.partition.engines.anneal import Annealer, Neighbourhood
from netsplit.partition.engines.kernels import CompiledStep
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import GPipe, Schedule, SingleBatch
from netsplit.program.schedules import ZBH1, OneFOneB
from netsplit.simulate.simulator import Simulator
from tests.builders import cluster_of, graph_of
from tests.examples import tried
from tests.partition.builders import large_problem, problems, trained, with_capacities

pytestmark = pytest.mark.usefixtures("few_moves")
quiet = settings(deadline=None, suppress_health_check=list(HealthCheck))
HEURISTICS = ("m_topo", "heft", "dpos", "balanced", "layerwise", "m_etf", "m_sct", "netsplit", "pesto")


def simulated(problem: Problem, schedule: Schedule) -> Problem:
    evaluate = Simulator(problem.graph, problem.cluster, problem.costs, schedule)
    return replace(problem, simulator=evaluate, in_flight=schedule.in_flight(2))


def seconds(problem: Problem, placement: Placement) -> float:
    assert problem.simulator is not None
    return float(problem.simulator(placement).iteration_s)


@settings(quiet, max_examples=10)
@given(problem=problems(max_nodes=7).map(trained))
def test_never_worse_than_another_method_that_fits(problem: Problem) -> None:
    problem = simulated(problem, SingleBatch())
    try:
        best = Auto(time_limit_s=4.0, starts=4).partition(problem)
    except InfeasibleError:
        best = None
    for name in HEURISTICS:
        try:
            other = METHODS[name]().partition(problem)
        except InfeasibleError:
            continue
        assert best is not None
        assert seconds(problem, best) <= seconds(problem, other) * (1 + 1e-9)


@settings(quiet, max_examples=6)
@given(problem=problems(max_nodes=5, max_devices=2, roomy=True).map(trained))
def test_its_objective_is_what_the_simulator_says_and_its_bound_is_below(problem: Problem) -> None:
    problem = simulated(problem, SingleBatch())
    placement = Auto(time_limit_s=4.0, starts=4).partition(problem)
    report = placement.report
    assert report.objective == pytest.approx(seconds(problem, placement), rel=1e-9, abs=1e-12)
    assert report.bound is not None
    assert report.bound <= report.objective
    assert report.notes["bound_for"] == "latency"


def test_the_order_on_a_device_is_searched_too() -> None:
    """The best of all has n3 before n2, so that the second device begins early; capture has it behind."""
    feeds = {"n0": [], "n1": ["n0"], "n2": ["n1"], "n3": ["n1"], "n4": ["n2", "n3"]}
    readers = {v: [u for u in feeds if v in feeds[u]] for v in feeds}
    graph = graph_of(list(feeds), [("", 16, ["n0"]), *((v, 100, readers[v]) for v in feeds)])
    took = {"n0": (5, 4, 1.2), "n1": (2, 4, 1.2), "n2": (1, 4, 0), "n3": (3, 7, 2.1), "n4": (1, 7, 2.1)}
    costs = {v: NodeSeconds(*(1e-3 * each for each in seconds)) for v, seconds in took.items()}
    cluster = cluster_of([2**40] * 2, 5e-4, 1e-6)
    problem = trained(Problem(graph, Costs({"cpu": DeviceCosts(costs)}, 2), cluster), fraction=1.0)
    problem = replace(simulated(problem, ZBH1(3)), objective=SimulatedIteration(), memory="lifetimes")
    placement = Auto(time_limit_s=20.0).partition(problem)
    assert seconds(problem, placement) == pytest.approx(0.06126, rel=0.02)


@settings(quiet, max_examples=tried(30))
@given(
    problem=problems(max_nodes=6, roomy=True).map(trained), schedule=st.sampled_from([GPipe(3), OneFOneB(2)])
)
def test_of_few_placements_none_is_better_in_the_order_of_capture(
    problem: Problem, schedule: Schedule
) -> None:
    roomy = with_capacities(problem, [2**40] * len(problem.cluster.devices))
    problem = replace(simulated(roomy, schedule), objective=SimulatedIteration())
    instance, best = Instance.of(problem), Auto(time_limit_s=20.0).partition(problem)
    order = topological_priority(problem.graph, problem.graph.position)
    for places in product(range(len(instance.devices)), repeat=len(instance.atoms)):
        where = np.array(places, np.int64)[instance.atom_of]
        if instance.fits(where):
            other = replace(best, device_of=instance.decode(where), priority=order, stages=())
            assert seconds(problem, best) <= seconds(problem, other) * (1 + 1e-9)


@settings(quiet, max_examples=tried(60))
@given(problem=problems(max_nodes=8), seed=st.integers(0, 99))
def test_moves_keep_atoms_whole_and_orders_topological(problem: Problem, seed: int) -> None:
    instance = Instance.of(problem)
    annealer = Annealer(instance)
    moves = Neighbourhood(
        problem.graph, instance, annealer.clusters, lambda where: annealer.step.evaluate(where)[1], seed
    )
    order = np.arange(instance.n)
    where = np.zeros(instance.n, np.int64)
    for _ in range(40):
        moved = moves.next_to(where, order)
        if moved is None:
            continue
        stays = np.array_equal(moved[0], where)
        assert instance.fits(moved[0]) or stays
        assert not (stays and np.array_equal(moved[1], order))
        where, order = moved
        rank = {instance.names[v]: i for i, v in enumerate(order)}
        assert sorted(order) == list(range(instance.n))
        assert all(rank[u] < rank[v] for v in rank for u in problem.graph.predecessors[v])
        assert all(len(set(where[list(atom)])) == 1 for atom in instance.atoms)


def test_a_feasible_problem_is_placed_however_short_the_time() -> None:
    problem = large_problem(300, room=1.5)
    placement = Auto(time_limit_s=1e-3).partition(problem)
    assert Instance.of(problem).fits(Instance.of(problem).encode(placement.device_of))


@settings(quiet, max_examples=tried(30))
@given(problem=problems(max_nodes=9).map(trained))
def test_annealing_answers_a_placement_that_fits_and_its_own_value(problem: Problem) -> None:
    instance = Instance.of(problem)
    annealer = Annealer(instance)
    places = annealer.run(np.zeros(instance.n, np.int64), 200, seed=problem.seed % 1000)
    if np.isfinite(places.value_s):
        assert instance.fits(places.where)
        assert (
            places.where == places.where[instance.atoms.items[instance.atoms.starts[instance.atom_of]]]
        ).all()
        step = CompiledStep(instance).makespan_s(places.where, places.order)
        assert places.value_s == step


def test_a_method_that_breaks_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: MTopo, problem: Problem) -> NoReturn:
        raise MemoryError("8 GB")

    monkeypatch.setattr(MTopo, "choose", broken)
    report = Auto(time_limit_s=4.0, starts=2).partition(large_problem(20, room=2.5)).report
    assert report.notes["left_out"] == {"m_topo": "out of memory: 8 GB"}
    assert "m_topo" not in report.notes["portfolio"]
    assert "heft" in report.notes["portfolio"]
