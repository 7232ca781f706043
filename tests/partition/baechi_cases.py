"""Small problems with whole seconds for Baechi's simulations, where a tick is a second."""

from collections.abc import Mapping, Sequence

from netsplit.partition.base import Problem
from netsplit.partition.methods.baechi.baechi import BaechiProblem
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from tests.builders import Tensors, cluster_of, graph_of


def problem_of(
    seconds: Mapping[str, float],
    tensors: Tensors,
    devices: int = 2,
    capacities: Sequence[int] = (),
    weights: Mapping[str, int] | None = None,
    colocated: Sequence[Sequence[str]] = (),
    copies: int = 1,
) -> Problem:
    """A byte takes a second to move, a weight's byte and a variable's byte count once (or `copies`)."""
    graph = graph_of(list(seconds), tensors, weights, colocated)
    each = {name: NodeSeconds(value, 2 * value) for name, value in seconds.items()}
    costs = Costs({"cpu": DeviceCosts(each)}, 1, variable_copies=copies)
    return Problem(graph, costs, cluster_of(capacities or [10**6] * devices, 0.0, 1.0))


def tasks_of(problem: Problem) -> BaechiProblem:
    return BaechiProblem.of(problem, tick_s=1.0)
