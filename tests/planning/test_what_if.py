"""What would help: what binds gives a gain, what does not gives none, and nothing is guessed."""

from dataclasses import dataclass, replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings

from netsplit.cluster.cluster import Link
from netsplit.errors import InfeasibleError
from netsplit.partition import (
    Choice,
    MaxLoad,
    Partitioner,
    Problem,
)
from netsplit.partition.common.capacity import infeasible
from netsplit.partition.common.instance import Instance
from netsplit.planning.what_if import (
    Change,
    apply_change,
    possible_changes,
    what_if,
)
from netsplit.profile.costs import NodeSeconds
from tests.builders import cluster_of, costs_of, graph_of
from tests.partition.builders import problems
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
    results = {
        result.change.label: result for result in what_if(crowded(), Best(), Best().partition(crowded()))
    }
    assert results["memory of d1"].base_s == 2.0
    assert results["memory of d1"].value_s == 1.0
    assert results["memory of d0"].gain_s == 0.0
    assert results["speed of d1"].gain_s == 0.0
    assert results["speed of d0"].gain_s == pytest.approx(2 - 2 / 1.1)
    assert next(iter(results)) == "memory of d1"


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
    for result in what_if(problem, Best(), best):
        cluster, costs = apply_change(problem, result.change)
        changed = Instance.of(replace(problem, cluster=cluster, costs=costs))
        optimum = changed.loads(changed.encode(Best().partition(changed.problem).device_of)).max()
        assert result.base_s == pytest.approx(base)
        assert result.value_s == pytest.approx(optimum)
        assert result.gain_s >= 0


def test_changes_cover_devices_and_links_that_are_alike() -> None:
    graph = graph_of(["a", "b"], [("a", 1, ["b"])], {"a": 200})
    cluster = cluster_of([100, 100, 1000], 0.0, 1e-9, kinds=["x", "x", "y"])
    cluster = cluster.with_links(cluster.links | {("d0", "d1"): Link(0.0, 1e-10)})
    problem = Problem(graph, costs_of(graph, kinds=("x", "y")), cluster)
    assert [change.label for change in possible_changes(problem)] == [
        "memory of d0 and d1", "speed of d0 and d1", "speed of d2",
        "bandwidth of 1 links of 10 GB/s", "bandwidth of 5 links of 1 GB/s",
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
