"""What no whole plan is below, by all plans of small problems, some of whose nodes can have no replicas."""

import random
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from netsplit.graph.checks.replicated import unreplicable_nodes, why_unreplicable
from netsplit.partition import Problem
from netsplit.planning.decide import why_none_fits
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.judge import of_every_plan_s
from tests.examples import tried
from tests.partition.builders import problems, with_capacities
from tests.planning.test_proven import NEVER, drawn, placements

ROOM = 2**40


def with_sparse(problem: Problem, names: list[str]) -> Problem:
    """Whose gradients are sparse, so that they have no replicas."""
    sparse = {
        v: replace(problem.graph.nodes[v], op="aten.embedding.default", kwargs={"sparse": True})
        for v in names
    }
    graph = replace(problem.graph, nodes={**problem.graph.nodes, **sparse})
    return replace(problem, graph=graph, simulator=replace(problem.the_simulator, graph=graph))


@settings(max_examples=tried(45), deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(max_nodes=4, max_devices=3), seed=st.integers(0, 10**6))
def test_no_plan_is_below_the_bound_of_all(problem: Problem, seed: int) -> None:
    draw = random.Random(seed)
    problem = drawn(problem, draw)
    schedule = problem.the_simulator.schedule
    weighted = [node.name for node in problem.graph if node.initializers]
    assume(schedule.update_every is None and weighted)
    names = draw.sample(weighted, draw.randint(1, len(weighted)))
    roomy = with_capacities(problem, [ROOM] * len(problem.cluster.devices))
    problem = with_sparse(replace(roomy, simulator=problem.simulator), names)
    assert unreplicable_nodes(problem.graph) == set(names)
    bound_s = of_every_plan_s(lambda m: problem, (schedule.microbatches,), AutoSchedule())
    tried_some = False
    for placement in placements(problem, draw):
        if why_unreplicable(problem.graph, placement.replicated) is None:
            tried_some = True
            assert bound_s <= problem.the_simulator(placement).iteration_s * NEVER + 1e-12
    assert tried_some


@settings(max_examples=tried(90), deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(max_nodes=4, max_devices=3), seed=st.integers(0, 10**6))
def test_where_it_is_proven_that_nothing_fits_no_plan_does(problem: Problem, seed: int) -> None:
    """With the most bytes for which it is proven, by bisection."""
    draw = random.Random(seed)
    problem = drawn(problem, draw)
    schedule = problem.the_simulator.schedule
    assume(schedule.update_every is None and problem.graph.nodes)
    open_ = AutoSchedule(recompute=draw.random() < 0.5)

    def proven(capacity: int) -> bool:
        tight = with_capacities(problem, [capacity] * len(problem.cluster.devices))
        tight = replace(tight, simulator=problem.simulator, memory="lifetimes")
        return why_none_fits(lambda m: tight, (schedule.microbatches,), open_) is not None

    assume(proven(0))
    low, high = 0, ROOM
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if proven(middle) else (low, middle)
    for placement in placements(problem, draw):
        if open_.recompute or not placement.recomputed:
            assert max(problem.the_simulator(placement).peak_bytes.values()) > low
