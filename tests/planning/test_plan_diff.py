"""What moved between two placements: nothing by mere names, and why the rest pays."""

import json
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.partition import Latency, MaxLoad, Placement, Problem, Random, SolverReport
from netsplit.planning.plan_diff import plan_diff
from netsplit.program import SingleBatch
from netsplit.simulate.simulator import Simulator
from tests.builders import cluster_of, costs_of, graph_of
from tests.partition.builders import problems
from tests.planning.explanation.test_explain import trained


def placed(problem: Problem, devices: str) -> Placement:
    """Node i on the device of the i-th digit."""
    names = dict(zip(problem.graph.nodes, (f"d{digit}" for digit in devices), strict=True))
    return Placement(f"by {devices}", names, dict(problem.graph.position), SolverReport("heuristic", 0.0))


def simulated(problem: Problem) -> Problem:
    """The problem with a simulator of one batch at a time."""
    evaluate = Simulator(problem.graph, problem.cluster, problem.costs, SingleBatch())
    return replace(problem, simulator=evaluate)


def line(count: int = 4, devices: int = 2, **modules: str) -> Problem:
    """n0 -> n1 -> ..., 3 s a node, 1 s for each of the transfers."""
    names = [f"n{i}" for i in range(count)]
    tensors = [(name, 10, names[i + 1 : i + 2]) for i, name in enumerate(names)]
    graph = graph_of(names, tensors, dict.fromkeys(names, 7))
    nodes = {k: replace(node, module=modules.get(k, "")) for k, node in graph.nodes.items()}
    graph = replace(graph, nodes=nodes)
    problem = trained(Problem(graph, costs_of(graph), cluster_of([10_000] * devices, 0.0, 0.1)))
    return simulated(problem)


def test_one_group_of_two_nodes_by_hand() -> None:
    problem = line(n2="head.a", n3="head.b")
    diff = plan_diff(problem, placed(problem, "0000"), placed(problem, "0011"))
    (group,) = diff.groups
    assert (group.nodes, group.module, group.source, group.target) == (("n2", "n3"), "head", "d0", "d1")
    assert (group.before_s, group.after_s, group.state_bytes) == (6.0, 6.0, 28)
    assert [(d.nodes_before, d.nodes_after, d.before_s, d.after_s) for d in diff.devices] == [
        (4, 2, 12.0, 6.0),
        (0, 2, 0.0, 6.0),
    ]
    assert (diff.lost, [edge.variable for edge in diff.gained]) == ((), ["t1"])
    assert (diff.before_s, diff.after_s) == (12.0, 14.0)
    assert {part.name: part.change_s for part in diff.parts} == {
        "time of d0": -6.0,
        "time of d1": 6.0,
        "transfers d0 -> d1": 1.0,
        "transfers d1 -> d0": 1.0,
    }
    text = "\n".join(diff.lines())
    for part in ("by 0000 to by 0011: 2 nodes moved in 1 group", "it does not pay: 12 s to 14 s",
                 "d0 to d1: n2, n3 of head", "newly cut: 1 edge", "+1 s  transfers d0 -> d1"):  # fmt: skip
        assert part in text


@settings(max_examples=80, deadline=None)
@given(problem=problems(max_nodes=10), data=st.data())
def test_equal_devices_under_other_names_are_no_move(problem: Problem, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 4))
    cluster = cluster_of([1000] * count, kinds=["cpu"] * count)
    problem = replace(problem, cluster=cluster)
    before = Random().partition(problem)
    names = [device.name for device in cluster.devices]
    other = dict(zip(names, data.draw(st.permutations(names)), strict=True))
    after = replace(before, device_of={v: other[d] for v, d in before.device_of.items()})
    diff = plan_diff(problem, before, after)
    assert (diff.nodes, diff.groups, diff.lost, diff.gained, diff.reordered) == (0, (), (), (), 0)
    assert all(change.before_bytes == change.after_bytes for change in diff.devices)
    assert "nothing moved" in diff.lines()[0]


def assigned(problem: Problem, rng: random.Random) -> Mapping[str, str]:
    return {name: rng.choice(problem.cluster.devices).name for name in problem.graph.nodes}


@settings(max_examples=80, deadline=None)
@given(problem=problems(max_nodes=10, colocate=False), seed=st.integers(0, 2**32), periodic=st.booleans())
def test_the_parts_add_up_to_the_objectives_and_groups_to_what_moved(
    problem: Problem, seed: int, periodic: bool
) -> None:
    problem = trained(problem)
    problem = simulated(problem)
    problem = replace(problem, objective=MaxLoad() if periodic else Latency())
    rng = random.Random(seed)
    before, after = (
        replace(Random().partition(problem), device_of=dict(assigned(problem, rng))) for _ in range(2)
    )
    diff = plan_diff(problem, before, after)
    assert sum(part.before_s for part in diff.parts) == pytest.approx(diff.before_s, abs=1e-9)
    assert sum(part.after_s for part in diff.parts) == pytest.approx(diff.after_s, abs=1e-9)
    now = {v: diff.renamed.get(d, d) for v, d in after.device_of.items()}
    went = {v: (before.device_of[v], d) for v, d in now.items() if before.device_of[v] != d}
    groups = {v: (group.source, group.target) for group in diff.groups for v in group.nodes}
    assert groups == went
    assert max(map(len, diff.lines())) <= 100
    assert json.loads(json.dumps(diff.to_dict()))["nodes"] == len(went)
