"""The thesis's Pesto: the least forward makespan of all placements, whatever the backward costs."""

import pytest
from hypothesis import HealthCheck, given, settings

from netsplit.partition import Problem
from netsplit.partition.methods.pesto.pesto import Pesto
from netsplit.profile.costs import NodeSeconds
from tests.builders import cluster_of, costs_of, graph_of
from tests.examples import tried
from tests.partition.builders import problems
from tests.partition.every_placement import assert_best_of_all

EXACT = {"gap": 0.0, "groups": 1000}
examples = settings(max_examples=tried(24), deadline=None, suppress_health_check=list(HealthCheck))


def forward_path(problem, device_of):
    """The longest path through the forward graph, transfers included."""
    graph, cluster = problem.graph, problem.cluster
    sent: dict[tuple[str, str], int] = {}
    for u, v, k in graph.edges:
        sent[u, v] = sent.get((u, v), 0) + graph.variables[k].nbytes
    end: dict[str, float] = {}
    for v in graph.nodes:
        arrivals = [
            end[u] + cluster.transfer_seconds(size, device_of[u], device_of[v])
            for (u, w), size in sent.items()
            if w == v
        ]
        end[v] = max(arrivals, default=0.0) + problem.costs.forward_s(v, cluster.device(device_of[v]).kind)
    return max(end.values())


@examples
@given(problem=problems(max_nodes=4))
def test_without_coplacement_the_objective_is_that_of_the_best_of_all_placements(problem):
    assert_best_of_all(Pesto(engine="highs", **EXACT), problem, forward_path)


def test_backward_seconds_change_nothing():
    """n1 runs forward faster on the second device and backward a hundred times slower."""
    graph = graph_of("ab", [("a", 1, "b"), ("b", 1, "")])
    costs = costs_of(graph, kinds=("cpu", "gpu"))
    costs = costs.with_device("gpu", nodes=dict.fromkeys("ab", NodeSeconds(0.5, 100.0)))
    problem = Problem(graph, costs, cluster_of([999, 999], kinds=["cpu", "gpu"]))
    placement = Pesto(engine="highs", **EXACT).partition(problem)
    assert set(placement.device_of.values()) == {"d1"}
    assert placement.report.objective == pytest.approx(1.0)
