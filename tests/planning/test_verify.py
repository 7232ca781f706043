"""The verifier: right answers pass, and every way to break one is found and named."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.cluster.cluster import Link
from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.partition import (
    MaxLoad,
    PipeDream,
    Placement,
    Problem,
    Random,
    SolverReport,
    StageTime,
)
from netsplit.partition.common.instance import Instance
from netsplit.partition.objectives import SimulatedIteration
from netsplit.placement.placement import Stage
from netsplit.planning.verify import used_bytes, verify
from netsplit.profile.memory import static_model
from netsplit.program.schedules import GPipe
from netsplit.simulate.simulator import Simulator
from tests.builders import cluster_of, costs_of, graph_of
from tests.messages import tells
from tests.partition.builders import problems, with_capacities
from tests.planning.score_by_definition import recomputed_max_load_s, recomputed_s

examples = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def trained(problem: Problem) -> Problem:
    """A gradient through every variable; every node without one makes an output of the graph."""
    graph = problem.graph
    variables = {k: replace(v, requires_grad=True) for k, v in graph.variables.items()}
    return replace(problem, graph=replace(graph, variables=variables))


def answer(problem: Problem, where: str, stages: tuple[Stage, ...] = ()) -> Placement:
    """Nodes in captured order on the devices "0", "1", ... that the letters say."""
    names = list(problem.graph.nodes)
    device_of = {name: f"d{p}" for name, p in zip(names, where, strict=True)}
    return Placement(
        "hand", device_of, {v: i for i, v in enumerate(names)}, SolverReport("heuristic", 0.0), stages
    )


def four() -> Problem:
    """n0 -> n1 -> n2 -> n3, n3 makes the loss, n0 and n1 share a device; 20 bytes of weight state each."""
    tensors = [("", 5, ["n0"]), ("n0", 10, ["n1"]), ("n1", 10, ["n2"]), ("n2", 10, ["n3"]), ("n3", 1, [])]
    names = ["n0", "n1", "n2", "n3"]
    graph = graph_of(names, tensors, dict.fromkeys(names, 10), colocated=[["n0", "n1"]])
    costs = costs_of(graph).with_device("cpu", step_s_per_byte=0.01)
    return trained(Problem(graph, costs, cluster_of([1000] * 3, latency_s=0.1)))


def broken(problem: Problem, placement: Placement, capacity: bool = True) -> str:
    verdict = verify(problem, placement, capacity)
    with pytest.raises(NetSplitError, match="is wrong"):
        verdict.require()
    return " ".join(verdict.violations)


def test_missing_and_unknown_nodes_and_devices_are_named():
    problem, right = four(), answer(four(), "0012")
    without = {k: v for k, v in right.device_of.items() if k != "n2"}
    assert "Node 'n2' has no device" in broken(problem, replace(right, device_of=without))
    unranked = {k: v for k, v in right.priority.items() if k != "n2"}
    assert "Node 'n2' has no priority" in broken(problem, replace(right, priority=unranked))
    assert "no such node" in broken(problem, replace(right, device_of={**right.device_of, "x": "d0"}))
    assert "'d7', which is not a device" in broken(problem, answer(problem, "0017"))


def test_a_colocated_set_that_is_torn_apart_is_named():
    sentences = broken(four(), answer(four(), "0112"))
    assert tells(sentences, "'n0'", "'n1'", "colocated", "'d0'", "'d1'")


def test_an_order_that_is_not_total_or_not_topological_is_named():
    problem, right = four(), answer(four(), "0012")
    swapped = {**right.priority, "n1": 2, "n2": 1}
    assert "Node 'n2' comes before 'n1'" in broken(problem, replace(right, priority=swapped))
    same = {**right.priority, "n3": 2}
    assert "have the same priority 2" in broken(problem, replace(right, priority=same))
    assert "outside 0 to 3" in broken(problem, replace(right, priority={**right.priority, "n3": 9}))


def test_a_unit_that_does_not_run_in_one_piece_is_named():
    graph = graph_of(["n0", "n1", "n2"], [("n0", 1, ["n2"])], units=[["n0", "n2"]], colocated=[["n0", "n2"]])
    problem = Problem(graph, costs_of(graph), cluster_of([100] * 2))
    assert tells(broken(problem, answer(problem, "010")), "unit", "'n0'")
    whole = replace(answer(problem, "010"), priority={"n1": 0, "n0": 1, "n2": 2})
    assert not verify(problem, whole).violations


def test_a_capacity_one_byte_too_small_is_named_where_it_is_claimed():
    problem, right = four(), answer(four(), "0012")
    used = static_model(problem.graph, problem.costs.alpha, problem.copies).by_device(right.device_of)
    limits = [used["d0"], used["d1"], used["d2"]]
    assert not verify(with_capacities(problem, limits), right).violations
    tight = with_capacities(problem, [limits[0], limits[1] - 1, limits[2]])
    assert f"Device 'd1' holds {limits[1]} bytes of {limits[1] - 1}: 1 too many" in broken(tight, right)
    assert not verify(tight, right, capacity=False).violations


def test_a_path_that_leaves_a_device_and_comes_back_is_named_where_contiguity_is_asked():
    problem = replace(four(), objective=MaxLoad(contiguous=True))
    assert tells(broken(problem, answer(problem, "0010")), "'n1'", "'n2'", "'n3'")
    assert not verify(problem, answer(problem, "0011")).violations
    halves = replace(problem, backward_nodes=frozenset({"n3"}))
    assert not verify(halves, answer(problem, "0010")).violations  # n3 is of the other half


def test_stages_that_contradict_the_placement_are_named():
    problem = four()
    stages = (Stage(("n0", "n1"), ("d0", "d2")), Stage(("n2", "n3"), ("d1",)))
    assert not verify(problem, answer(problem, "0011", stages)).violations
    assert tells(broken(problem, answer(problem, "1111", stages)), "stage 0", "'d0'")
    twice = (stages[0], Stage(("n2", "n3"), ("d1", "d2")))
    assert tells(broken(problem, answer(problem, "0011", twice)), "'d2'", "stage 0", "stage 1")
    few = (stages[0], Stage(("n2",), ("d1",)))
    assert "Node 'n3' is in no stage" in broken(problem, answer(problem, "0011", few))
    back = (stages[1], stages[0])
    assert tells(broken(problem, answer(problem, "0011", back)), "'t2'", "stage 1")
    replicas = with_capacities(problem, [1000, 1000, 10])
    assert "Device 'd2' holds" in broken(replicas, answer(problem, "0011", stages))


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ((0, 2), ("tage 0", "device number 2", "0 to 1")),
        ((0, -1, 1), ("tage 0", "device number -1")),
        ((0, 0), ("'d2'", "stage 0", "no turn")),
        ((0, 0, 0, 0, 1), ("'d2'", "no turn among 4 micro-batches")),
    ],
)
def test_turns_that_leave_a_replica_out_or_are_nobody_s_are_named(turns, words):
    problem = replace(four(), objective=SimulatedIteration())
    evaluate = Simulator(problem.graph, problem.cluster, problem.costs, GPipe(4))
    problem = replace(problem, simulator=evaluate)
    stages = (Stage(("n0", "n1"), ("d0", "d2"), turns=turns), Stage(("n2", "n3"), ("d1",)))
    assert tells(broken(problem, answer(problem, "0011", stages)), *words)
    right = (replace(stages[0], turns=(1, 0, 1)), stages[1])
    assert not verify(problem, answer(problem, "0011", right)).violations


@examples
@given(problems(), st.data())
def test_bytes_and_max_load_are_those_of_the_other_definitions(problem, data):
    problem = trained(problem) if data.draw(st.booleans()) else problem
    if data.draw(st.booleans()):
        ports = [
            data.draw(st.sampled_from([None, Link(0.0, 0.0), Link(0.2, 0.03)]))
            for _ in problem.cluster.devices
        ]
        devices = tuple(replace(d, port=port) for d, port in zip(problem.cluster.devices, ports, strict=True))
        problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    placement = Random().partition(replace(problem, seed=data.draw(st.integers(0, 99))))
    device_of = placement.device_of
    instance = Instance.of(problem)
    where = instance.encode(device_of)
    largest_s = recomputed_max_load_s(problem, placement)
    assert largest_s == pytest.approx(instance.loads(where).max(), abs=1e-12)
    for p, device in enumerate(instance.devices):
        nodes = {name for name, q in device_of.items() if q == device}
        assert used_bytes(problem, {"it": nodes})["it"] == instance.used_bytes(where)[p]


@settings(max_examples=60, deadline=None)
@given(
    problem=problems(max_devices=4, roomy=True),
    split=st.booleans(),
    backward=st.booleans(),
    seed=st.integers(0, 99),
)
def test_stage_time_is_that_of_the_other_definition(
    problem: Problem, split: bool, backward: bool, seed: int
) -> None:
    problem = trained(problem) if backward else problem
    problem = replace(problem, objective=StageTime(), seed=seed)
    if split and len(problem.cluster.devices) == 4:
        problem = replace(problem, cluster=replace(problem.cluster, levels=((2, 100.0), (2, 20.0))))
    answers = [Random().partition(problem)]
    with suppress(InfeasibleError):
        answers.append(PipeDream().partition(problem))
    for placement in answers:
        expected = problem.objective.score_s(problem, placement)
        assert recomputed_s(problem, placement) == pytest.approx(expected, rel=1e-9, abs=1e-15)
