"""What one more device, more memory or more bandwidth would bring to a whole plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from netsplit.cluster.cluster import Cluster, Link
from netsplit.errors import NetSplitError
from netsplit.partition.base import Problem
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.judge import Judge, Tried
from netsplit.planning.whole.search import WholeSearch

__all__ = ["Gain", "gains_of"]

FACTOR = 1.1


@dataclass(frozen=True)
class Gain:
    """Samples per second with a change, beside those without it."""

    change: str
    samples_per_s: float
    gain: float  # of those without

    def __str__(self) -> str:
        return f"{self.change}: {self.samples_per_s:,.1f} samples/s ({100 * self.gain:+.1f} %)"


def gains_of(
    problem_of: Callable[[int], Problem],
    counts: Sequence[int],
    open_: AutoSchedule,
    known: Sequence[Tried],
    batch_size: int,
    seconds: float,
) -> tuple[Gain, ...]:
    """Each change decided anew by structures alone, and by the plans that are known; never less than those.

    Args:
        known: plans to move to the changed cluster, the chosen one among them.
        seconds: for all changes.
    """
    base = min(tried.iteration_s for tried in known if tried.fits)
    changes = {
        "one more device like the fastest": _one_more,
        "10 % more memory on every device": _roomier,
        "10 % more bandwidth on every link": _wider,
    }
    gains = []
    for words, change in changes.items():
        cluster = change(problem_of(counts[0]))

        def changed(m: int, cluster: Cluster = cluster) -> Problem:
            problem = problem_of(m)
            return problem.moved_to(cluster, problem.costs)

        judge = Judge(changed, open_.recompute)
        for tried in known:
            judge.judge(tried.origin, tried.schedule, tried.placement)
        now = time.perf_counter()
        search = WholeSearch(changed, counts, open_, judge, None, now, now + seconds / len(changes))
        with suppress(NetSplitError):  # known plans stand
            search.structures()
        best_s = min(base, judge.best_s)
        gains.append(Gain(words, batch_size / best_s, base / best_s - 1.0))
    return tuple(gains)


def _one_more(problem: Problem) -> Cluster:
    """With another device of the fastest kind, linked as the first of that kind is."""
    cluster, costs = problem.cluster, problem.costs
    seconds = {
        each.kind: sum(costs.total_s(v, each.kind) for v in problem.graph.nodes) for each in cluster.devices
    }
    like = min(cluster.devices, key=lambda each: seconds[each.kind])
    new = replace(like, name=f"{like.name} again")
    others = [each.name for each in cluster.devices if each is not like]
    between = cluster.links[like.name, others[-1]] if others else Link(0.0, 0.0)
    links = dict(cluster.links)
    for name in others:
        links[new.name, name], links[name, new.name] = (
            cluster.links[like.name, name],
            cluster.links[name, like.name],
        )
    links[new.name, like.name] = links[like.name, new.name] = between
    return Cluster(cluster.name, (*cluster.devices, new), links)


def _roomier(problem: Problem) -> Cluster:
    devices = [
        replace(each, capacity_bytes=int(FACTOR * each.capacity_bytes)) for each in problem.cluster.devices
    ]
    return replace(problem.cluster, devices=tuple(devices))


def _wider(problem: Problem) -> Cluster:
    links = {
        ends: replace(link, seconds_per_byte=link.seconds_per_byte / FACTOR)
        for ends, link in problem.cluster.links.items()
    }
    return replace(problem.cluster, links=links)
