"""What a change of plan moves is told in full: every operator once, the devices by their own names."""

import re
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.partition import Placement, Problem, Random, SolverReport
from netsplit.placement.placement import Stage
from netsplit.planning.plan import Plan
from netsplit.planning.plan_change import placement_change
from tests.builders import cluster_of, costs_of, graph_of
from tests.partition.builders import problems

ROUTE = re.compile(r"(\d+) operators? (?:from (\S+) to (\S+):|between other devices)")


def placed(problem: Problem, devices: str) -> Placement:
    """Node i on the device of the i-th digit."""
    names = dict(zip(problem.graph.nodes, (f"d{digit}" for digit in devices), strict=True))
    return Placement(f"by {devices}", names, dict(problem.graph.position), SolverReport("heuristic", 0.0))


def line(count: int = 4, devices: int = 2) -> Problem:
    """n0 -> n1 -> ..., 3 s a node, 1 s for each of the transfers."""
    names = [f"n{i}" for i in range(count)]
    tensors = [(name, 10, names[i + 1 : i + 2]) for i, name in enumerate(names)]
    graph = graph_of(names, tensors, dict.fromkeys(names, 7))
    return Problem(graph, costs_of(graph), cluster_of([10_000] * devices, 0.0, 0.1))


def unscored(problem: Problem, placement: Placement) -> Plan:
    return Plan(problem, problem.rewritten(placement.rewrites), placement, 0.0, 0.0, None)


def test_two_operators_by_hand() -> None:
    problem = line()
    before, after = (unscored(problem, placed(problem, each)) for each in ("0000", "0011"))
    change = placement_change(before, after)
    assert (change.moved, change.split, change.joined) == (2, 0, 0)
    assert change.lines == ("2 operators from d0 to d1: n2 and n3",)
    same = placement_change(after, after)
    assert (same.moved, same.lines) == (0, ("nothing moved",))


@settings(max_examples=60, deadline=None)
@given(problem=problems(max_nodes=12), data=st.data())
def test_every_operator_that_is_elsewhere_is_told_once(problem: Problem, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    problem = replace(problem, cluster=cluster_of([1000] * count, kinds=["cpu"] * count))
    before = Random().partition(problem)
    names = st.sampled_from([device.name for device in problem.cluster.devices])
    after = replace(before, device_of={v: data.draw(names) for v in before.device_of}, stages=())
    change = placement_change(unscored(problem, before), unscored(problem, after))
    went = Counter(
        (before.device_of[v], after.device_of[v])
        for v in before.device_of
        if before.device_of[v] != after.device_of[v]
    )
    told = [match.groups() for each in change.lines if (match := ROUTE.match(each))]
    assert change.moved == went.total() == sum(int(many) for many, *_ in told)
    assert all(went[p, q] == int(many) for many, p, q in told if p)


def test_replicas_and_recomputation_are_told() -> None:
    problem = line()
    kept = placed(problem, "0000")
    stage = Stage(tuple(problem.graph.nodes), ("d0", "d1"))
    before = unscored(problem, kept)
    again = unscored(problem, replace(kept, recomputed=frozenset({"n1"})))
    assert placement_change(before, again).lines == ("1 operator recomputed, 0 before",)
    doubled = unscored(problem, replace(kept, stages=(stage,)))
    assert placement_change(before, doubled).lines == ("replicas: d0 and d1, none before",)
    assert placement_change(doubled, before).lines == ("replicas: none, d0 and d1 before",)
