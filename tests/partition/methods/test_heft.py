"""HEFT: its paper's example, insertion, and what it promises on random problems."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings

from netsplit.errors import InfeasibleError
from netsplit.partition import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.engines.insertion.schedule import book_slot, earliest_slot, slots_of
from netsplit.partition.engines.insertion.tasks import StepTasks
from netsplit.partition.methods.list_schedulers import Heft, mean_ranks
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from tests.builders import chain, cluster_of, graph_of
from tests.examples import tried
from tests.partition.builders import with_capacities

examples = settings(max_examples=tried(60), deadline=None, suppress_health_check=list(HealthCheck))
ROOMY = 10**6

# Topcuoglu et al. 2002, figure 2 and table 1: seconds on three processors, and data of each edge
SECONDS = {
    1: (14, 16, 9), 2: (13, 19, 18), 3: (11, 13, 19), 4: (13, 8, 17), 5: (12, 13, 10),
    6: (13, 16, 9), 7: (7, 15, 11), 8: (5, 11, 14), 9: (18, 12, 20), 10: (21, 7, 16),
}  # fmt: skip
EDGES = {
    (1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23,
    (4, 8): 27, (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13,
}  # fmt: skip


def paper_example() -> Problem:
    graph = graph_of([f"n{v}" for v in SECONDS], [(f"n{u}", c, [f"n{v}"]) for (u, v), c in EDGES.items()])
    kinds = ("p1", "p2", "p3")
    table = {
        kind: DeviceCosts({f"n{v}": NodeSeconds(w[p], 0.0) for v, w in SECONDS.items()})
        for p, kind in enumerate(kinds)
    }
    cluster = cluster_of([ROOMY] * 3, seconds_per_byte=1.0, kinds=kinds)
    return Problem(graph, Costs(table, 2), cluster)


def trained(problem: Problem) -> Problem:
    """The same problem with a gradient through every variable that a node makes."""
    graph = problem.graph
    variables = {k: replace(v, requires_grad=v.producer is not None) for k, v in graph.variables.items()}
    return replace(problem, graph=replace(graph, variables=variables))


def test_the_papers_example_has_its_ranks_and_its_length_of_80():
    problem = paper_example()
    instance = Instance.of(problem)
    ranks = mean_ranks(instance, StepTasks.of(instance))[:10]
    published = [108.0, 77.0, 80.0, 80.0, 69.0, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert ranks == pytest.approx(published, abs=1e-3)
    placement = Heft().partition(problem)
    assert placement.report.objective == pytest.approx(80.0)
    on = {p: sorted(int(v[1:]) for v, q in placement.device_of.items() if q == p) for p in ("d0", "d1", "d2")}
    assert on == {"d0": [2, 8], "d1": [4, 6, 9, 10], "d2": [1, 3, 5, 7]}


def test_a_task_is_inserted_into_an_idle_slot_that_is_long_enough():
    slots = slots_of(1, 2)
    book_slot(slots, 0, earliest_slot(slots, 0, 4.0, 2.0), 2.0)  # [4, 6]
    book_slot(slots, 0, earliest_slot(slots, 0, 7.0, 1.0), 1.0)  # [7, 8]
    assert earliest_slot(slots, 0, 0.0, 4.0) == 0.0
    assert earliest_slot(slots, 0, 1.0, 4.0) == 8.0  # [1, 4] and [6, 7] are too short
    assert earliest_slot(slots, 0, 5.0, 1.0) == 6.0
    assert earliest_slot(slots, 0, 3.5, 0.5) == 3.5
    assert earliest_slot(slots, 0, 7.5, 0.0) == 8.0  # no task runs inside another, not even one of 0 seconds
    assert earliest_slot(slots, 0, 4.0, 0.0) == 4.0


def test_the_backwards_seconds_count_where_devices_differ():
    """Both run the forward in 1 s; the second is slow backwards."""
    graph = chain([1])
    fast, slow = NodeSeconds(1.0, 1.0), NodeSeconds(0.9, 5.0)
    kinds = {"fast": fast, "slow": slow}
    table = {kind: DeviceCosts(dict.fromkeys(graph.nodes, each)) for kind, each in kinds.items()}
    cluster = cluster_of([ROOMY] * 2, kinds=["slow", "fast"])
    problem = Problem(graph, Costs(table, 2), cluster)
    graph = graph_of(["n0", "n1"], [("n0", 1, ["n1"]), ("n1", 1, [])])
    placement = Heft().partition(trained(replace(problem, graph=graph)))
    assert set(placement.device_of.values()) == {"d1"}
    assert placement.report.objective == pytest.approx(4.0)
    assert set(Heft().partition(replace(problem, graph=graph)).device_of.values()) == {"d0"}


def test_an_atom_that_finds_no_room_is_placed_first_the_next_time():
    """Greedily n0 takes the only device that is large enough for n1."""
    graph = graph_of(["n0", "n1"], [("", 0, ["n0"])], {"n0": 10, "n1": 30})
    table = {"cpu": DeviceCosts({"n0": NodeSeconds(2.0, 0.0), "n1": NodeSeconds(1.0, 0.0)})}
    problem = Problem(graph, Costs(table, 2), cluster_of([70, 20]))
    placement = Heft().partition(problem)
    assert placement.device_of == {"n0": "d1", "n1": "d0"}
    assert placement.report.notes["reserved_atoms"] == 1
    with pytest.raises(InfeasibleError, match="heft finds no placement"):
        Heft().partition(with_capacities(problem, [70, 19]))
