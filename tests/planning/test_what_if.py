"""What would help: what binds gives a gain, what does not gives none, and nothing is guessed."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings

from netsplit.cluster.cluster import Link
from netsplit.cluster.described import uniform_cluster
from netsplit.errors import InfeasibleError
from netsplit.partition import (
    Choice,
    MaxLoad,
    Partitioner,
    PipeDream,
    Placement,
    Problem,
    SolverReport,
)
from netsplit.partition.common.capacity import infeasible
from netsplit.partition.common.instance import Instance
from netsplit.planning.decide import decide
from netsplit.planning.simulated import Simulated
from netsplit.planning.what_if import (
    Change,
    WhatIf,
    apply_change,
    possible_changes,
    what_if,
    what_if_lines,
)
from netsplit.profile.costs import NodeSeconds
from netsplit.program import SingleBatch
from tests.builders import cluster_of, costs_of, graph_of
from tests.messages import tells
from tests.partition.builders import problems
from tests.partition.stage_problems import chain_problem
from tests.planning.explanation.test_explain import trained


@dataclass(frozen=True)
class Best(Partitioner):
    """The least largest load there is, by looking at all placements."""

    name = "best"

    def choose(self, problem: Problem) -> Choice:
        instance = Instance.of(problem)
        names, devices = instance.names, instance.devices
        placed = (dict(zip(names, chosen, strict=True)) for chosen in product(devices, repeat=len(names)))
        options = [
            (float(instance.loads(where).max()), where.tolist())
            for device_of in placed
            if all(len({device_of[name] for name in group}) == 1 for group in problem.graph.colocated)
            and instance.fits(where := instance.encode(device_of))
        ]
        if not options:
            raise infeasible(problem, self.name)
        return Choice(instance.decode(min(options)[1]), status="optimal")


def crowded() -> Problem:
    """Three nodes without edges of 100, 60 and 60 bytes of states: 1 s each on d0, 0.5 s on d1.

    d1 has 115 bytes: one node fits, and two go to d0. With 120 bytes the two of 60 go to d1.
    """
    graph = graph_of(["a", "b", "c"], [], {"a": 50, "b": 30, "c": 30})
    costs = costs_of(graph, kinds=("slow", "fast"))
    costs = costs.with_device("fast", nodes=dict.fromkeys(graph.nodes, NodeSeconds(0.5, 0.5)))
    cluster = cluster_of([200, 115], kinds=["slow", "fast"])
    return replace(Problem(graph, costs, cluster), objective=MaxLoad())


def test_memory_that_binds_gives_the_gain_and_other_memory_none() -> None:
    """Two nodes on d0 take 2 s (no gradient passes); with 126 bytes on d1 one of them can leave."""
    results = {result.change.label: result for result in what_if(crowded(), Best())}
    assert results["memory of d1"].base_s == 2.0
    assert (results["memory of d1"].value_s, results["memory of d1"].gain) == (1.0, 0.5)
    assert results["memory of d1"].resolved
    assert not results["memory of d1"].kept
    assert results["memory of d0"].gain_s == 0.0
    assert results["speed of d1"].gain_s == 0.0
    assert results["speed of d0"].gain_s == pytest.approx(2 - 2 / 1.1)
    assert next(iter(results)) == "memory of d1"


def test_the_table_says_what_helps_and_what_does_not() -> None:
    results = what_if(crowded(), Best())
    lines = what_if_lines(results)
    assert "10 % more memory of d1" in lines[1]
    assert "1 s  -50.0 %" in lines[1]
    assert lines[-1].startswith("  no gain: ")
    assert "memory of d0" in lines[-1]
    assert max(map(len, lines)) <= 100
    assert json.loads(json.dumps([result.to_dict() for result in results]))[0]["gain"] == 0.5


def test_gains_that_would_not_show_are_none() -> None:
    change = Change("speed", "speed of d0", ("d0",))
    small, large = (WhatIf(change, 1.0, 1.0, value, True, True, "kept") for value in (0.9997, 0.999))
    assert tells(what_if_lines([small])[-1], "no gain", "speed of d0")
    assert "-0.1 %" in what_if_lines([large])[-1]
    late = replace(small, resolved=False)
    (line,) = what_if_lines([late])
    assert tells(line, "time", "speed of d0")
    assert "no gain" not in line
    assert what_if_lines([late, large])[-1] == line


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(max_nodes=5, max_devices=3))
def test_every_gain_is_the_difference_of_two_optima(problem: Problem) -> None:
    """With an exact method nothing but the change itself moves the objective, and it never loses."""
    problem = replace(trained(problem), objective=MaxLoad())
    try:
        best = Best().partition(problem)
    except InfeasibleError:
        return
    instance = Instance.of(problem)
    base = instance.loads(instance.encode(best.device_of)).max()
    for result in what_if(problem, Best(), placement=best):
        cluster, costs = apply_change(problem, result.change)
        changed = Instance.of(replace(problem, cluster=cluster, costs=costs))
        optimum = changed.loads(changed.encode(Best().partition(changed.problem).device_of)).max()
        assert result.base_s == pytest.approx(base)
        assert result.value_s == pytest.approx(optimum)
        assert result.gain_s >= 0


def test_each_change_gets_its_part_of_the_time_and_is_announced() -> None:
    limits: list[float | None] = []
    seen: list[tuple[int, int, str]] = []

    @dataclass(frozen=True)
    class Timed(Best):
        def choose(self, problem: Problem) -> Choice:
            limits.append(problem.time_limit_s)
            return super().choose(problem)

    problem = replace(crowded(), time_limit_s=5.0)
    changes = possible_changes(problem)
    what_if(problem, Timed(), changes, lambda *args: seen.append(args), time_limit_s=10.0)
    assert limits[0] == 5.0
    assert all(0 < limit <= 5.0 for limit in limits[1:] if limit is not None)
    assert None not in limits
    assert limits[1] is not None
    assert limits[1] <= 10.0 / len(changes)
    assert seen == [(i, len(changes), change.label) for i, change in enumerate(changes)]


def test_changes_cover_devices_kinds_pairs_and_equal_links() -> None:
    graph = graph_of(["a", "b"], [("a", 1, ["b"])], {"a": 200})
    cluster = cluster_of([100, 100, 1000], 0.0, 1e-9, kinds=["x", "x", "y"])
    cluster = cluster.with_links(cluster.links | {("d0", "d1"): Link(0.0, 1e-10)})
    problem = Problem(graph, costs_of(graph, kinds=("x", "y")), cluster)
    assert [change.label for change in possible_changes(problem)] == [
        "memory of d0", "memory of d1", "memory of all 2 of kind x",
        "speed of d0", "speed of d1", "speed of d2", "speed of all 2 of kind x",
        "bandwidth d0 <-> d1", "bandwidth d0 <-> d2", "bandwidth d1 <-> d2",
        "bandwidth of all 5 links of 1 GB/s",
    ]  # fmt: skip


def test_a_change_changes_what_it_says_and_nothing_else() -> None:
    graph = graph_of(["a", "b"], [("a", 1, ["b"])])
    costs = costs_of(graph).with_device("cpu", step_s_per_byte=1.1, instruction_s=0.55)
    problem = Problem(graph, costs, cluster_of([100, 200], 1.0, 1.1))
    memory, same = apply_change(problem, Change("memory", "", ("d0",)))
    assert [device.capacity_bytes for device in memory.devices] == [110, 200]
    assert (same, memory.links) == (costs, problem.cluster.links)
    faster, speeds = apply_change(problem, Change("speed", "", ("d1",)))
    kinds = [device.kind for device in faster.devices]
    assert kinds[0] == "cpu"
    assert speeds.devices[kinds[1]].nodes["a"].backward_s == pytest.approx(2 / 1.1)
    assert speeds.devices[kinds[1]].step_s_per_byte == pytest.approx(1.0)
    assert speeds.devices[kinds[1]].instruction_s == pytest.approx(0.5)
    assert speeds.devices["cpu"] == costs.devices["cpu"]
    wider, same = apply_change(problem, Change("bandwidth", "", (), (("d0", "d1"),)))
    assert wider.links["d0", "d1"] == Link(1.0, pytest.approx(1.0))
    assert wider.links["d1", "d0"] == Link(1.0, 1.1)
    assert same == costs
    first, second = problem.cluster.devices
    ported = replace(problem.cluster, devices=(replace(first, port=Link(0.0, 2.2)), second))
    wider, _ = apply_change(replace(problem, cluster=ported), Change("bandwidth", "", ("d0", "d1")))
    assert wider.devices[0].port == Link(0.0, pytest.approx(2.0))
    assert wider.devices[1].port is None


@pytest.mark.parametrize(
    ("devices", "bandwidth", "wide"),
    [(4, [100.0], [110.0]), ([2, 2], [1000.0, 100.0], [1000.0, 110.0])],
    ids=["one level", "the outer of two"],
)
def test_wider_links_are_a_cluster_described_with_them(
    devices: int | list[int], bandwidth: list[float], wide: list[float]
) -> None:
    """Also for PipeDream's period, which knows the rates of levels and no links."""
    given_, other = (
        uniform_cluster(devices, rates, capacity=10**6).cluster("cpu", 0) for rates in (bandwidth, wide)
    )
    problem = chain_problem([1.0, 1.0, 1.0, 1.0], [400, 300, 500], [0, 0, 0, 0], given_)
    slow = tuple(ends for ends, link in given_.links.items() if link.bandwidth == pytest.approx(100.0))
    change = Change("bandwidth", "", (), slow)
    cluster, _ = apply_change(problem, change)
    assert [units for units, _ in cluster.levels] == [units for units, _ in other.levels]
    assert [rate for _, rate in cluster.levels] == pytest.approx([rate for _, rate in other.levels])
    placed = Placement(
        "given",
        {f"n{i}": f"d{i}" for i in range(4)},
        {f"n{i}": i for i in range(4)},
        SolverReport("limit", 0),
    )
    before, after, said = (
        problem.objective.score_s(replace(problem, cluster=each), placed) for each in (given_, cluster, other)
    )
    assert after == pytest.approx(said)
    assert after < before
    (result,) = what_if(problem, PipeDream(), [change], placement=placed)
    assert result.value_s == pytest.approx(
        min(said, decide(replace(problem, cluster=other), PipeDream()).objective_s)
    )


def test_more_speed_of_everything_gains_just_that_where_devices_contend() -> None:
    """Two nodes side by side on one host, each 1.5 times as long for it; 10 % more speed saves a tenth of
    all, and does not end the contention too."""
    graph = graph_of(["a", "b"], [])
    costs = costs_of(graph, 1.0, 0.0).with_device("cpu", contention=1.5)
    cluster = cluster_of([1000, 1000])
    cluster = replace(cluster, devices=tuple(replace(d, host="here") for d in cluster.devices))
    problem = Problem(graph, costs, cluster, evaluate=Simulated(graph, cluster, costs, SingleBatch()))
    report = SolverReport("heuristic", 0.0)
    apart = Placement("apart", {"a": "d0", "b": "d1"}, dict(graph.position), report)

    @dataclass(frozen=True)
    class Apart(Partitioner):
        def choose(self, problem: Problem) -> Choice:
            return Choice(apart.device_of)

    (change,) = what_if(problem, Apart(), [Change("speed", "", ("d0", "d1"))], placement=apart)
    assert change.base_s == pytest.approx(1.5)
    assert change.value_s == pytest.approx(1.5 / 1.1)
