"""What no whole plan is below, by all plans of small problems, some of whose nodes can have no replicas."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from netsplit.graph.checks.replicated import unreplicable_nodes, why_unreplicable
from netsplit.partition import Problem
from netsplit.planning.simulated import simulated_by
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.bounds import of_every_plan_s, why_none_fits
from netsplit.program import GPipe
from tests.builders import cluster_of, costs_of, graph_fed
from tests.examples import tried
from tests.partition.builders import problems, with_capacities
from tests.planning.test_proven import NEVER, drawn, placements, simulated

ROOM = 2**40


def with_sparse(problem: Problem, names: list[str]) -> Problem:
    """Whose gradients are sparse, so that they have no replicas."""
    sparse = {
        v: replace(problem.graph.nodes[v], op="aten.embedding.default", kwargs={"sparse": True})
        for v in names
    }
    graph = replace(problem.graph, nodes={**problem.graph.nodes, **sparse})
    return replace(problem, graph=graph, evaluate=replace(simulated_by(problem), graph=graph))


@settings(max_examples=tried(90), deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(max_nodes=4, max_devices=3), seed=st.integers(0, 10**6))
def test_no_plan_is_below_the_bound_of_all(problem: Problem, seed: int) -> None:
    draw = random.Random(seed)
    problem = drawn(problem, draw)
    schedule = simulated_by(problem).schedule
    weighted = [node.name for node in problem.graph if node.initializers]
    assume(schedule.update_every is None and weighted)
    names = draw.sample(weighted, draw.randint(1, len(weighted)))
    roomy = with_capacities(problem, [ROOM] * len(problem.cluster.devices))
    problem = with_sparse(replace(roomy, evaluate=problem.evaluate), names)
    assert unreplicable_nodes(problem.graph) == set(names)
    bound_s = of_every_plan_s(lambda m: problem, (schedule.microbatches,), AutoSchedule())
    tried_some = False
    for placement in placements(problem, draw):
        if why_unreplicable(problem.graph, placement.replicated) is None:
            tried_some = True
            assert bound_s <= simulated_by(problem)(placement).iteration_s * NEVER + 1e-12
    assert tried_some


@settings(max_examples=tried(90), deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(max_nodes=4, max_devices=3), seed=st.integers(0, 10**6))
def test_where_it_is_proven_that_nothing_fits_no_plan_does(problem: Problem, seed: int) -> None:
    """With the most bytes for which it is proven, by bisection."""
    draw = random.Random(seed)
    problem = drawn(problem, draw)
    schedule = simulated_by(problem).schedule
    assume(schedule.update_every is None and problem.graph.nodes)
    open_ = AutoSchedule(recompute=draw.random() < 0.5)

    def proven(capacity: int) -> bool:
        tight = with_capacities(problem, [capacity] * len(problem.cluster.devices))
        tight = replace(tight, evaluate=problem.evaluate, memory="lifetimes")
        return why_none_fits(lambda m: tight, (schedule.microbatches,), open_) is not None

    assume(proven(0))
    low, high = 0, ROOM
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if proven(middle) else (low, middle)
    for placement in placements(problem, draw):
        if open_.recompute or not placement.recomputed:
            assert max(simulated_by(problem)(placement).peak_bytes.values()) > low


def test_all_devices_together_may_be_too_small_for_what_each_has_room_for() -> None:
    graph = graph_fed({"n0": [], "n1": ["n0"], "n2": ["n1"]}, weights={"n0": 8, "n1": 8, "n2": 8})
    costs = costs_of(graph, forward_s=1.0, backward_s=2.0)

    def reason(capacity: int, splits: bool = False) -> str | None:
        problem = simulated(Problem(graph, costs, cluster_of([capacity] * 2)), GPipe(1))
        return why_none_fits(lambda m: problem, (1,), AutoSchedule(splits=splits))

    proofs = {capacity: reason(capacity) for capacity in range(0, 200, 4)}
    assert "needs" in (proofs[4] or "")
    assert any("all devices together have" in (proof or "") for proof in proofs.values())
    assert proofs[196] is None
    assert reason(4, splits=True) is None


def test_nodes_without_replicas_are_counted_whole() -> None:
    """Of a chain of three: the second alone takes all the time that it takes on one device."""
    graph = graph_fed({"n0": [], "n1": ["n0"], "n2": ["n1"]}, weights={"n1": 8})
    linear = {v: replace(node, op="aten.linear.default") for v, node in graph.nodes.items()}
    graph, costs = replace(graph, nodes=linear), costs_of(graph, forward_s=1.0, backward_s=2.0)
    problem = simulated(Problem(graph, costs, cluster_of([ROOM] * 4)), GPipe(8))

    def bound_s(each: Problem) -> float:
        return of_every_plan_s(lambda m: each, (8,), AutoSchedule())

    spread, whole = bound_s(problem), bound_s(with_sparse(problem, ["n1"]))
    assert spread == pytest.approx(8 * 9 / 4, rel=0.2)
    assert whole == pytest.approx(1 + 8 * 3 + 2)  # between the first's forward and backward
