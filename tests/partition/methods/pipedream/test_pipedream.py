"""`pipedream` against enumeration, by hand, and in what it adds to the released planner."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import InfeasibleError
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.pipedream.antichains import antichain_states, downset_states
from netsplit.partition.methods.pipedream.best_stages import best_stages, lower_bound_s
from netsplit.partition.methods.pipedream.pipedream import PipeDream
from netsplit.partition.objectives import Formula, Layers, StageTime, levels_of
from netsplit.profile.memory import memory_of
from tests.builders import costs_of, graph_of
from tests.partition.builders import problems, with_capacities
from tests.partition.stage_problems import chain_problem, devices, plans, slowest

chains = st.integers(1, 5).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(0.1, 9.0), min_size=n, max_size=n),
        st.lists(st.integers(0, 40), min_size=n - 1, max_size=n - 1),
        st.lists(st.integers(0, 60), min_size=n, max_size=n),
    )
)


def nodes_of(placement) -> list[tuple[str, ...]]:
    return [stage.nodes for stage in placement.stages]


def replication(placement) -> list[int]:
    return [len(stage.devices) for stage in placement.stages]


@pytest.mark.parametrize("cost", ["released", "paper"])
@settings(max_examples=60, deadline=None)
@given(chain=chains, count=st.integers(1, 5), bandwidth=st.sampled_from([5.0, 50.0]))
def test_the_value_is_the_least_of_all_cuts_and_replications(cost, chain, count, bandwidth):
    seconds, tensors, weights = chain
    problem = chain_problem(seconds, tensors, weights, devices(count, bandwidth))
    placement = PipeDream(cost=cost).partition(problem)
    least = min(slowest(plan, *chain, bandwidth, cost) for plan in plans(len(seconds), count))
    assert placement.report.objective == pytest.approx(least)
    own = tuple((len(stage.nodes), len(stage.devices)) for stage in placement.stages)
    assert slowest(own, *chain, bandwidth, cost) == pytest.approx(least)
    assert sum(replication(placement)) == count


def test_two_levels_by_hand():
    """Two machines of two: no weights, so all four could share; the cut is free, sharing inside too."""
    levels = [(2, 1000.0), (2, 1.0)]
    problem = chain_problem([4.0, 4.0], [0], [100, 100], devices(4, 1.0, levels))
    placement = PipeDream().partition(problem)
    # On a machine: (4 + 4*100/(1000*2))/2 = 2.1 for one node. Across machines W/B alone would cost 100 s.
    assert placement.report.objective == pytest.approx(2.1)
    assert nodes_of(placement) == [("n0",), ("n1",)]
    assert [stage.devices for stage in placement.stages] == [("d0", "d1"), ("d2", "d3")]
    assert StageTime().score_s(problem, placement) == pytest.approx(2.1)


def diamonds(count: int, length: int) -> list[tuple[str, int, list[str]]]:
    """Forks of three chains, one after another; edges with one byte each."""
    edges: dict[str, list[str]] = {}
    for d in range(count):
        for branch in range(3):
            names = [f"f{d}", *(f"x{d}_{branch}_{i}" for i in range(length)), f"f{d + 1}"]
            for u, v in itertools.pairwise(names):
                edges.setdefault(u, []).append(v)
    return [(u, 1, readers) for u, readers in edges.items()]


def diamond_problem(count: int, length: int) -> Problem:
    tensors = diamonds(count, length)
    names = [
        name
        for d in range(count)
        for name in (f"f{d}", *(u for u, _, _ in tensors if u.startswith(f"x{d}_")))
    ]
    graph = graph_of([*names, f"f{count}"], tensors)
    return Problem(graph, costs_of(graph), devices(4, 100.0), objective=StageTime())


def test_too_many_states_merge_chains_then_regions():
    layers = Layers.of(diamond_problem(2, 4))
    assert len(antichain_states(layers, 2000)) == 2 * 5**3 + 1
    merged = antichain_states(layers, 100)
    assert (merged.reduction, len(merged)) == ("branches", 2 * 2**3 + 1)
    regions = antichain_states(layers, 10)
    assert (regions.reduction, len(regions)) == ("regions", 5)
    order = antichain_states(layers, 4)
    assert order.reduction == "order"
    assert len(order) <= 4
    assert order.members[-1].all()
    assert downset_states(layers, 10) is None


def test_backward_nodes_of_a_task_graph_follow_their_colour_class():
    graph = graph_of(
        ["a", "b", "c", "cb", "bb", "ab"],
        [("a", 1, ["b"]), ("b", 1, ["c"]), ("cb", 1, ["bb"]), ("bb", 1, ["ab"])],
        colocated=[["a", "ab"], ["b", "bb"], ["c", "cb"]],
    )
    problem = Problem(
        graph, costs_of(graph, 1.0, 0.0), devices(3, 100.0), backward_nodes=frozenset({"ab", "bb", "cb"})
    )
    placement = PipeDream(straight=True).partition(problem)
    assert nodes_of(placement) == [("a", "ab"), ("b", "bb"), ("c", "cb")]
    assert placement.report.objective == 2.0


@settings(max_examples=60, deadline=None)
@given(problem=problems(), straight=st.booleans())
def test_every_replica_fits_and_the_score_is_the_reports(problem, straight):
    try:
        placement = PipeDream(straight=straight).partition(problem)
    except InfeasibleError:
        return
    if not placement.stages:
        assert placement.report.notes["fallback"]
        return
    assert Instance.of(problem).stages_fit(placement.stages)
    for stage in placement.stages:
        held = memory_of(problem.graph, stage.nodes, problem.costs.alpha, problem.copies)
        assert all(held <= problem.cluster.device(p).capacity_bytes for p in stage.devices)
    assert StageTime().score_s(problem, placement) == pytest.approx(placement.report.objective)
    stage_of = {name: s for s, stage in enumerate(placement.stages) for name in stage.nodes}
    assert stage_of.keys() == problem.graph.nodes.keys()
    assert all(stage_of[u] <= stage_of[v] for u, v, _ in problem.graph.edges)


def test_a_plan_that_does_not_fit_gives_way_to_one_that_does():
    problem = chain_problem([9.0, 3.0, 3.0], [1, 1], [40, 5, 5], devices(2, 1e6))
    assert replication(PipeDream().partition(problem)) == [2]
    tight = with_capacities(problem, [90, 60])
    placement = PipeDream().partition(tight)
    assert nodes_of(placement) == [("n0",), ("n1", "n2")]
    assert placement.report.objective == 9.0


@settings(max_examples=40, deadline=None)
@given(
    problem=problems(max_devices=4, roomy=True),
    split=st.booleans(),
)
def test_the_best_stages_are_never_worse_than_the_planners_nor_better_than_the_bound(problem, split):
    count = len(problem.cluster.devices)
    if split and count == 4:
        problem = replace(problem, cluster=replace(problem.cluster, levels=((2, 100.0), (2, 20.0))))
    try:
        theirs = PipeDream().partition(problem)
    except InfeasibleError:
        return
    if not theirs.stages:
        return
    ours = best_stages(problem, 5.0)
    placement = replace(theirs, device_of=ours.device_of, stages=ours.stages)
    score = StageTime().score_s(problem, placement)
    assert score == pytest.approx(ours.objective_s)
    assert score <= theirs.report.objective * (1 + 1e-9)
    assert score >= lower_bound_s(Layers.of(problem), Formula(levels_of(problem))) * (1 - 1e-9)
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
