"""What a placement takes at least, under any schedule."""

from __future__ import annotations

from collections import Counter

from netsplit.partition.base import Placement, Problem, device_in_turn

__all__ = ["under_any_schedule_s"]


def under_any_schedule_s(problem: Problem, microbatches: int, placement: Placement) -> float:
    """Seconds of an iteration that none is shorter than: of the device that is done last, if none waited.

        device q   |--- head(v) ---|--- rounds x work of all on q that no micro-batch comes to before v ---|

    head(v) is the longest way of a first micro-batch's forward to node v, each node on the fastest of its
    devices; transfers, sums of gradients and what a backward waits for are left out.

    Args:
        problem: of the graph whose operators are placed.
    """
    costs, kinds = problem.costs, {each.name: each.kind for each in problem.cluster.devices}
    forward_s = {
        v: min(costs.forward_s(v, kinds[name]) for name in stage.devices)
        for stage in placement.all_stages
        for v in stage.nodes
    }
    heads: dict[str, float] = {}
    for v in problem.graph.nodes:
        heads[v] = max((heads[u] + forward_s[u] for u in problem.graph.predecessors[v]), default=0.0)
    work: dict[str, list[tuple[float, float]]] = {}
    for stage in placement.all_stages:
        turns = Counter(device_in_turn(stage.in_turn, i) for i in range(microbatches))
        for name, rounds in turns.items():
            own = ((heads[v], rounds * costs.total_s(v, kinds[name])) for v in stage.nodes)
            work.setdefault(name, []).extend(own)
    return max((_done_s(each) for each in work.values()), default=0.0)


def _done_s(work: list[tuple[float, float]]) -> float:
    """When a device has done all, at the earliest; of what comes when, and the seconds that it takes."""
    done_s = 0.0
    for head_s, seconds in sorted(work):
        if seconds > 0.0:
            done_s = max(done_s, head_s) + seconds
    return done_s
