"""What moved between two placements: nothing by mere names, and why the rest pays."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.partition import Latency, MaxLoad, Placement, Problem, Random, SolverReport
from netsplit.planning.decide import verified
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


def line(count: int = 4, devices: int = 2) -> Problem:
    """n0 -> n1 -> ..., 3 s a node, 1 s for each of the transfers."""
    names = [f"n{i}" for i in range(count)]
    tensors = [(name, 10, names[i + 1 : i + 2]) for i, name in enumerate(names)]
    graph = graph_of(names, tensors, dict.fromkeys(names, 7))
    problem = trained(Problem(graph, costs_of(graph), cluster_of([10_000] * devices, 0.0, 0.1)))
    return simulated(problem)


def test_two_nodes_that_moved_by_hand() -> None:
    problem = line()
    before, after = (verified(problem, placed(problem, each)) for each in ("0000", "0011"))
    diff = plan_diff(before, after)
    assert (diff.before_s, diff.after_s, diff.change.moved) == (12.0, 14.0, 2)
    text = "\n".join(diff.lines())
    for part in ("by 0000 to by 0011: slower, 12 s to 14 s (17 %)", "-6 s  d0", "+6 s  d1",
                 "+1 s  d0 -> d1", "2 operators from d0 to d1"):  # fmt: skip
        assert part in text
    assert json.loads(json.dumps(diff.to_dict()))["change"]["moved"] == 2


@settings(max_examples=80, deadline=None)
@given(problem=problems(max_nodes=10), data=st.data())
def test_equal_devices_under_other_names_are_no_move(problem: Problem, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 4))
    cluster = cluster_of([100_000] * count, kinds=["cpu"] * count)
    problem = simulated(replace(problem, cluster=cluster))
    before = Random().partition(problem)
    names = [device.name for device in cluster.devices]
    other = dict(zip(names, data.draw(st.permutations(names)), strict=True))
    after = replace(before, device_of={v: other[d] for v, d in before.device_of.items()})
    diff = plan_diff(*(verified(problem, each, room=False) for each in (before, after)))
    assert (diff.change.moved, diff.before_s) == (0, diff.after_s)
    assert any("nothing moved" in each for each in diff.lines())


@settings(max_examples=40, deadline=None)
@given(problem=problems(max_nodes=10, colocate=False), seed=st.integers(0, 2**32), periodic=st.booleans())
def test_what_the_seconds_go_to_adds_up_to_the_objectives(
    problem: Problem, seed: int, periodic: bool
) -> None:
    problem = simulated(trained(problem))
    problem = replace(problem, objective=MaxLoad() if periodic else Latency())
    rng, names = random.Random(seed), [device.name for device in problem.cluster.devices]
    before, after = (
        verified(
            problem,
            replace(
                Random().partition(problem), device_of={v: rng.choice(names) for v in problem.graph.nodes}
            ),
            room=False,
        )
        for _ in range(2)
    )
    diff = plan_diff(before, after)
    assert sum(diff.made_of_before.values()) == pytest.approx(diff.before_s, abs=1e-9)
    assert sum(diff.made_of_after.values()) == pytest.approx(diff.after_s, abs=1e-9)
