"""Problems with PipeDream's costs, and every way to cut a chain into replicated stages."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from netsplit.cluster.cluster import Cluster
from netsplit.partition import Problem, StageTime
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from tests.builders import chain, cluster_of

Plan = tuple[tuple[int, int], ...]  # (nodes, replicas) of each stage


def devices(count: int, bandwidth: float, levels: Sequence[tuple[int, float]] = ()) -> Cluster:
    """Alike and roomy, with one bandwidth (bytes per second) between any two."""
    cluster = cluster_of([10**9] * count, seconds_per_byte=1 / bandwidth)
    return replace(cluster, levels=tuple(levels)) if levels else cluster


def chain_problem(
    seconds: Sequence[float], tensors: Sequence[int], weights: Sequence[int], cluster: Cluster
) -> Problem:
    """Nodes n0 -> n1 -> ...; each one's seconds are all backward."""
    graph = chain(tensors, {f"n{i}": w for i, w in enumerate(weights)})
    costs = Costs(
        {"cpu": DeviceCosts({f"n{i}": NodeSeconds(0.0, s) for i, s in enumerate(seconds)})}, alpha=2
    )
    return Problem(graph, costs, cluster, objective=StageTime())


def plans(nodes: int, replicas: int) -> Iterator[Plan]:
    """Every cut of so many nodes in a row, with so many devices in all."""
    if nodes and replicas:
        yield ((nodes, replicas),)
    for n in range(1, nodes):
        for m in range(1, replicas):
            for rest in plans(nodes - n, replicas - m):
                yield ((n, m), *rest)


def slowest(
    plan: Plan,
    seconds: Sequence[float],
    tensors: Sequence[int],
    weights: Sequence[int],
    bandwidth: float,
    cost: str,
) -> float:
    """The slowest stage or transfer of a plan on one level, from the formulas of METHODS and the paper."""
    at, worst = 0, 0.0
    for s, (n, m) in enumerate(plan):
        c, w = sum(seconds[at : at + n]), sum(weights[at : at + n])
        if cost == "paper":
            worst = max(worst, c / m, 2 * (m - 1) * w / bandwidth / m)
            worst = max(worst, 2 * tensors[at - 1] / bandwidth if s else 0.0)
        else:
            worst = max(worst, (c + 4 * (m - 1) * w / (bandwidth * m)) / m)
            if s:
                moved = [tensors[at - 1], *tensors[at + n - 1 : at + n]]
                worst = max(worst, 2 * max(moved) / (bandwidth * m))
        at += n
    return worst
