"""What is recomputed makes a placement fit, at seconds near the fewest, and never at more than everything."""

import random
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from netsplit.errors import InfeasibleError
from netsplit.graph import Graph
from netsplit.partition import METHODS, Placement, Problem, Single, SolverReport
from netsplit.partition.objectives import SimulatedIteration
from netsplit.planning.decide import decide
from netsplit.planning.recomputation import nearest_recomputed
from netsplit.planning.verify import verify
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program.schedules import ZBH1, GPipe, Interleaved, OneFOneB, Schedule, SingleBatch
from netsplit.simulate.simulator import Simulator
from tests.builders import cpus
from tests.cover import covering
from tests.nets import CASES, placements
from tests.program.test_recomputation import saving_chain
from tests.runtime.equivalence.running import captured_for

SCHEDULES: dict[str, Schedule] = {
    "single_batch": SingleBatch(recompute="auto"),
    "gpipe": GPipe(4, recompute="auto"),
    "1f1b": OneFOneB(4, recompute="auto"),
    "interleaved_1f1b": Interleaved(4, recompute="auto"),
    "zb_h1": ZBH1(4, recompute="auto"),
    "delayed": OneFOneB(3, recompute="auto", delay_weights=True),
}


def problem_of(
    graph: Graph, schedule: Schedule, seed: int, devices: int = 2, overhead_s: float = 0.0
) -> Problem:
    """With room for anything, and drawn seconds."""
    rng = random.Random(seed)
    seconds = {name: NodeSeconds(rng.random(), 2 * rng.random(), 0.1 * rng.random()) for name in graph.nodes}
    costs = Costs({"cpu": DeviceCosts(seconds, 0.0, overhead_s)}, 2)
    cluster = cpus(devices)
    evaluate = Simulator(graph, cluster, costs, schedule)
    return Problem(
        graph, costs, cluster, objective=SimulatedIteration(), simulator=evaluate, memory="lifetimes"
    )


def within(problem: Problem, capacity: int) -> Problem:
    devices = tuple(replace(each, capacity_bytes=capacity) for each in problem.cluster.devices)
    return problem.moved_to(replace(problem.cluster, devices=devices), problem.costs)


def placed(device_of: dict[str, str], priority: dict[str, int]) -> Placement:
    return Placement("drawn", device_of, priority, SolverReport("heuristic", 0.0))


def ends(problem: Problem, placement: Placement) -> tuple[int, int, float]:
    """Largest peaks with everything kept and with everything recomputed; and the seconds of the latter."""
    simulator = problem.the_simulator
    kept = simulator(placement)
    anew = simulator(replace(placement, recomputed=frozenset(problem.graph.nodes)))
    return max(kept.peak_bytes.values()), max(anew.peak_bytes.values()), anew.iteration_s


@covering(name=["chain", "cells", "u_shape", "attention", "in_place"], schedule=SCHEDULES)
@settings(max_examples=2, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_what_is_answered_fits_and_is_not_slower_than_everything(
    name: str, schedule: str, data: st.DataObject
) -> None:
    order = SCHEDULES[schedule]
    graph = captured_for(CASES[name], order)
    problem = problem_of(graph, order, data.draw(st.integers(0, 99)))
    placement = placed(*data.draw(placements(graph, 2)))
    most, least, everything_s = ends(problem, placement)
    part = data.draw(st.floats(0, 1))
    tight = within(problem, int(least + part * max(most - least, 0)))
    answer = nearest_recomputed(tight, placement)[0]
    predicted = problem.the_simulator(answer)
    assert max(predicted.peak_bytes.values()) <= tight.cluster.devices[0].capacity_bytes
    assert predicted.iteration_s <= everything_s * (1 + 1e-9)
    assert "recomputed" not in " ".join(verify(tight, answer, capacity=False).violations)
    assert nearest_recomputed(tight, placement)[0] == answer
    assert nearest_recomputed(tight, answer)[0] == answer


@pytest.mark.parametrize("seed", range(20))
def test_a_chains_answer_is_near_the_best_of_all_sets(seed: int) -> None:
    """Compares iterations; most are the best. What is left out are bytes of an operator's own gradients."""
    rng = random.Random(seed)
    count = rng.randint(3, 5)
    graph = saving_chain([rng.choice([0, 50, 300, 900]) for _ in range(count)])
    schedule = rng.choice([SCHEDULES[name] for name in ("single_batch", "gpipe", "1f1b")])
    problem = problem_of(graph, schedule, seed, overhead_s=1e-3)
    half = rng.choice([count, count // 2])
    device_of = {name: f"cpu:{int(i >= half)}" for i, name in enumerate(graph.nodes)}
    placement = placed(device_of, graph.position)
    most, least, _ = ends(problem, placement)
    capacity = int(least + rng.random() * max(most - least, 0))
    simulator = problem.the_simulator
    sets = [frozenset(names) for size in range(count + 1) for names in combinations(graph.nodes, size)]
    timelines = [simulator(replace(placement, recomputed=names)) for names in sets]
    best_s = min(each.iteration_s for each in timelines if max(each.peak_bytes.values()) <= capacity)
    answer = simulator(nearest_recomputed(within(problem, capacity), placement)[0])
    assert max(answer.peak_bytes.values()) <= capacity
    assert answer.iteration_s <= 1.15 * best_s


def workload(name: str) -> Workload:
    graph = captured_for(CASES[name], GPipe(4))
    problem = problem_of(graph, GPipe(4), 1)
    return Workload("net", graph, problem.costs, cpus(2))


def asked(name: str, capacity: int, schedule: Schedule) -> Problem:
    work = workload(name)
    return replace(work, cluster=cpus(2, capacity)).problem(
        objective="simulated", schedule=schedule, memory="lifetimes"
    )


def test_methods_may_answer_what_fits_only_with_recomputation() -> None:
    """Less capacity than without it is accepted; where both are, it is not slower."""
    partitioner = METHODS["balanced"]()

    def iteration_s(capacity: int, schedule: Schedule) -> float:
        try:
            plan = decide(asked("u_shape", capacity, schedule), partitioner)
        except InfeasibleError:
            return float("inf")
        peaks = plan.problem.the_simulator(plan.placement).peak_bytes
        assert max(peaks.values()) <= capacity
        return plan.objective_s

    room = decide(asked("u_shape", 2**40, GPipe(4)), Single())
    peak = max(room.problem.the_simulator(room.placement).peak_bytes.values())
    capacities = [int(part * peak) for part in (0.9, 0.6, 0.45, 0.35)]
    kept, auto = (
        [iteration_s(capacity, schedule) for capacity in capacities]
        for schedule in (GPipe(4), GPipe(4, recompute="auto"))
    )
    assert all(a <= k for a, k in zip(auto, kept, strict=True))
    assert sum(map(np.isfinite, auto)) > sum(map(np.isfinite, kept))


def test_the_verifier_knows_nodes_and_units() -> None:
    graph = captured_for(CASES["in_place"], GPipe(4))
    problem = problem_of(graph, GPipe(4), 0)
    placement = placed(dict.fromkeys(graph.nodes, "cpu:0"), graph.position)
    strange = verify(problem, replace(placement, recomputed=frozenset({"nowhere"})), capacity=False)
    assert "'nowhere' is to be recomputed, but the graph has no such node" in " ".join(strange.violations)
    unit = graph.units[0]
    half = verify(problem, replace(placement, recomputed=frozenset(unit[:1])), capacity=False)
    assert "are one unit, but only" in " ".join(half.violations)
