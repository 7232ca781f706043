"""What is proven of every plan: at most what any placement takes under any schedule, replicas included."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.errors import NetSplitError
from netsplit.graph.ir import Graph
from netsplit.graph.quotient import atoms_of, topological_priority
from netsplit.partition import Placement, Problem, SimulatedIteration, SolverReport, Stage
from netsplit.partition.bounds.iteration_bound import iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule
from netsplit.partition.common.instance import Instance
from netsplit.partition.partitioner import needed_bytes
from netsplit.planning.decide import proven_s
from netsplit.program import Schedule
from netsplit.program.schedules import SCHEDULES, SingleBatch
from netsplit.simulate.simulator import Simulator
from tests.builders import behind_nics, chain, cluster_of, costs_of, cpus, graph_fed
from tests.examples import tried
from tests.partition.builders import disturbed, problems, trained, with_capacities

NEVER = 1 + 1e-9


def simulated(problem: Problem, schedule: Schedule, training: bool = True) -> Problem:
    evaluate = Simulator(problem.graph, problem.cluster, problem.costs, schedule, training)
    in_flight = schedule.in_flight(len(problem.cluster.devices))
    return replace(problem, simulator=evaluate, objective=SimulatedIteration(), in_flight=in_flight)


def line(nodes: int) -> Graph:
    """A chain with a loss at its end."""
    return graph_fed({f"n{i}": [f"n{i - 1}"] if i else [] for i in range(nodes)})


def drawn(problem: Problem, draw: random.Random) -> Problem:
    """Simulated, with gradients, costs of all kinds, tensors that are saved, by either count of bytes."""
    problem = trained(problem, draw.choice([0.0, 0.8, 1.0]), draw.randrange(1000))
    problem = disturbed(problem, draw) if draw.random() < 0.6 else problem
    if draw.random() < 0.4:
        problem = replace(problem, cluster=behind_nics(problem.cluster, draw))
    costs = problem.costs
    for kind, each in costs.devices.items():
        late = {
            v: replace(s, weight_s=draw.choice([0, 0.3, 1]) * s.backward_s) for v, s in each.nodes.items()
        }
        costs = costs.with_device(kind, nodes=late)
    saving = {
        v: replace(
            node,
            saved=tuple(k for k in (*node.inputs, *node.outputs) if draw.random() < 0.5),
            saved_bytes=draw.choice([0, 7]),
        )
        for v, node in problem.graph.nodes.items()
    }
    problem = replace(problem, graph=replace(problem.graph, nodes=saving), costs=costs)
    kind = draw.choice(list(SCHEDULES.values()))
    keys = {} if kind is SingleBatch else {"microbatches": draw.randint(1, 5)}
    late_weights = kind().delay_weights or draw.random() < 0.3
    schedule = kind(**keys, delay_weights=late_weights, recompute=draw.random() < 0.2)
    memory = draw.choice(["static", "lifetimes"])
    return simulated(replace(problem, memory=memory), schedule, draw.random() < 0.9)  # type: ignore[arg-type]


def placements(problem: Problem, draw: random.Random) -> Iterator[Placement]:
    """All of them, each in one drawn order; with every set of devices as replicas of some stage, too."""
    atoms = atoms_of(problem.graph)
    names = [device.name for device in problem.cluster.devices]
    sets = [each for r in range(1, len(names) + 1) for each in combinations(names, r)]
    for chosen in product(sets, repeat=len(atoms)):
        groups = list(dict.fromkeys(chosen))
        if sum(map(len, groups)) > len({name for group in groups for name in group}):
            continue  # a replica has nodes of its own
        device_of = {v: group[0] for atom, group in zip(atoms, chosen, strict=True) for v in atom}
        stages = tuple(
            Stage(tuple(v for v in problem.graph.nodes if device_of[v] == group[0]), group)
            for group in groups
        )
        order = {v: draw.random() for v in problem.graph.nodes}
        priority = topological_priority(problem.graph, order)
        replicated = stages if any(len(group) > 1 for group in groups) else ()
        yield Placement("drawn", device_of, priority, SolverReport("heuristic", 0.0), replicated)


@settings(max_examples=tried(90), deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(max_nodes=4, max_devices=3), seed=st.integers(0, 10**6))
def test_no_plan_is_below_what_is_proven(problem: Problem, seed: int) -> None:
    """Tries all placements and replicas, within the capacities and without."""
    draw = random.Random(seed)
    problem = drawn(problem, draw)
    instance = Instance.of(problem)
    assert problem.simulator is not None
    for placement in placements(problem, draw):
        try:
            timeline = problem.simulator(placement)  # type: ignore[arg-type]
        except NetSplitError:  # replicas under 2BW
            continue
        most = timeline.iteration_s * NEVER + 1e-12
        assert proven_s(problem, within=False) <= most
        needed = needed_bytes(instance, placement, timeline)
        if (needed <= instance.capacity).all():
            assert proven_s(problem) <= most
        if draw.random() < 0.5:  # as little room as this one needs
            tight = with_capacities(problem, needed.tolist())
            assert proven_s(tight) <= most


@settings(max_examples=tried(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(max_nodes=4, max_devices=3), seed=st.integers(0, 10**6))
def test_nor_is_one_with_replicas_of_other_nodes(problem: Problem, seed: int) -> None:
    draw = random.Random(seed)
    problem = drawn(problem, draw)
    alone = frozenset(draw.sample(list(problem.graph.nodes), draw.randint(1, len(problem.graph.nodes))))
    bound_s = iteration_bound_s(
        problem, replace(AnySchedule.under(problem.the_simulator, within=False), alone=alone)
    )
    for placement in placements(problem, draw):
        if any(len(stage.devices) > 1 and alone & set(stage.nodes) for stage in placement.stages):
            continue
        try:
            timeline = problem.the_simulator(placement)
        except NetSplitError:  # replicas under 2BW
            continue
        assert bound_s <= timeline.iteration_s * NEVER + 1e-12


def test_the_work_is_spread_over_unlike_devices() -> None:
    graph = line(8)
    costs = costs_of(graph, forward_s=1.0, backward_s=2.0)
    fast = costs.devices["cpu"].scaled(2.0)
    costs = replace(costs, devices={"cpu": costs.devices["cpu"], "gpu": fast})
    cluster = cluster_of([10**6] * 3, kinds=("cpu", "cpu", "gpu"))
    problem = Problem(graph, costs, cluster)
    # 8 micro-batches of 8 nodes of 3 seconds, at 1 + 1 + 2 times the slow devices' speed
    assert iteration_bound_s(problem, AnySchedule(8)) == pytest.approx(48.0, rel=1e-6)


@pytest.mark.parametrize("capacities", [[100] * 4, [100, 100, 101, 101]])
@pytest.mark.parametrize(
    ("processors", "contention", "seconds"),
    [
        (None, 1.0, 20.0),
        (1.6, 1.0, 50.0),
        (2.0, 1.5, 60.0),
    ],
)
def test_four_devices_are_worth_the_processors_that_they_take_turns_on(
    processors: float | None, contention: float, seconds: float, capacities: list[int]
) -> None:
    """Eighty seconds of work, whether the devices are of one class or of several."""
    graph, cluster = chain([0] * 3), cpus(4)
    devices = tuple(
        replace(d, processors=processors, capacity_bytes=each)
        for d, each in zip(cluster.devices, capacities, strict=True)
    )
    costs = costs_of(graph, 1.0, 0.0).with_device("cpu", contention=contention)
    problem = Problem(graph, costs, replace(cluster, devices=devices))
    assert iteration_bound_s(problem, AnySchedule(20)) == pytest.approx(seconds, rel=1e-6)
