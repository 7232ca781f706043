"""What one more device, more memory or more bandwidth would bring to a whole plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

from netsplit.cluster.cluster import Cluster, Link
from netsplit.errors import NetSplitError
from netsplit.partition.base import Problem
from netsplit.planning.explanation.notation import listed
from netsplit.planning.whole.judge import Judge, Tried
from netsplit.planning.whole.lines.stages import Group
from netsplit.planning.whole.pace import SimulationPace
from netsplit.planning.whole.search.search_time import SearchTime
from netsplit.planning.whole.search.whole_search import WholeSearch

__all__ = ["ChangedCluster", "Gain", "changed_clusters", "gain_lines", "gains_of"]

FACTOR = 1.1
FEW = 3  # plans of a changed cluster that are tried without the change
MOST = 8  # stages of which each is tried with one more replica
PARTS = (0.5, 0.5, 1.0)  # of the time that is left, for each change
SEARCHED = 0.8  # of a change's time; then what it found is tried without it
TOLD = 0.0005  # relative: a smaller gain is told as none


@dataclass(frozen=True)
class Gain:
    """Samples per second with a change, beside those without it."""

    change: str
    samples_per_s: float
    gain: float  # of those without

    def __str__(self) -> str:
        more = f"{100 * self.gain:+.1f} %" if self.gain < 1.0 else f"{1.0 + self.gain:,.1f} times as many"
        return f"{self.change}: {self.samples_per_s:,.1f} samples/s ({more})"


def gain_lines(gains: Sequence[Gain]) -> list[str]:
    """A line for each that brings something, below a heading, and one for all others."""
    none = [each.change for each in gains if each.gain < TOLD]
    lines = [f"  {each}" for each in gains if each.gain >= TOLD]
    heading = ["More hardware would bring, at least:"] if lines else []
    return [*heading, *lines, *([f"No faster plan was found with {listed(none, 'or')}."] if none else [])]


@dataclass(frozen=True)
class ChangedCluster:
    """More of a resource, and what was tried with it."""

    words: str
    judge: Judge
    devices: frozenset[str]  # that there are without the change

    def iteration_s(self, base: Judge) -> float:
        """Of the best plan; one that could run without the change counts only if it was tried there, too."""
        own = [
            each.iteration_s
            for each in self.judge.tried
            if each.fits and (base.knows(each) or not self.devices.issuperset(each.devices))
        ]
        return min(own, default=float("inf"))


def changed_clusters(search: WholeSearch, until: float) -> list[ChangedCluster]:
    """Each change searched by structures, from the plans that are known; what that finds is tried without it.

        known plans ──► changed cluster: structures ──► better ones ──► cluster as it is ──► new winner?
             ▲                                                                                   │
             └──────────────────────── the best on all changed clusters ◄───────────────────────┘

    Args:
        search: that is done, on the cluster as it is; its judge notes what is better.
        until: on ``time.perf_counter``; changes for which there is no time are left out.
    """
    judge = search.judge
    judge.pace = replace(judge.pace, deadline=until)
    known = sorted(judge.best.values(), key=lambda tried: tried.rank)
    devices = frozenset(each.name for each in search.problem_of(search.counts[0]).cluster.devices)
    changes: list[ChangedCluster] = []
    for i, (words, change) in enumerate(CHANGES.items()):
        now = time.perf_counter()
        end = now + PARTS[i] * (until - now)
        pace = replace(judge.pace, deadline=now + SEARCHED * (end - now))
        first = known[0]
        problem = judge.problem_for(first.schedule.microbatches, first.placement)
        if not pace.affords(problem, first.schedule, first.placement):
            continue
        changed = _searched(search, change, known, pace)
        new = {each.name for each in changed.problem_of(search.counts[0]).cluster.devices} - devices
        if new and not any(new.intersection(tried.devices) for tried in changed.tried):
            continue
        changes.append(ChangedCluster(words, changed, devices))
        for tried in _better(changed, judge):
            if devices.issuperset(tried.devices):
                judge.judge(tried.origin, tried.schedule, tried.placement)
    winner = judge.winner
    assert winner is not None, "known plans stand"
    for each in changes:
        each.judge.pace = judge.pace
        each.judge.judge(winner.origin, winner.schedule, winner.placement)
    return changes


def gains_of(changes: Sequence[ChangedCluster], base: Judge, batch_size: int) -> tuple[Gain, ...]:
    """What the changes bring to the best plan; never less than nothing, as it could be kept."""
    winner = base.winner
    assert winner is not None, "there is a plan"
    seconds = {each.words: min(winner.iteration_s, each.iteration_s(base)) for each in changes}
    return tuple(
        Gain(words, batch_size / best_s, winner.iteration_s / best_s - 1.0)
        for words, best_s in seconds.items()
    )


def _searched(
    search: WholeSearch,
    change: Callable[[Problem], Cluster],
    known: Sequence[Tried],
    pace: SimulationPace,
) -> Judge:
    """The plans that are known on a changed cluster, and structures, those like the best one first."""
    own = search.problem_of(search.counts[0])
    cluster, counts = change(own), list(search.counts)

    def changed(m: int) -> Problem:
        problem = search.problem_of(m)
        return problem.moved_to(cluster, problem.costs)

    judge = Judge(changed, search.open.recompute, pace=pace)
    added = len(cluster.devices) > len(own.cluster.devices)
    for tried in () if added else known:  # without the new device they are as they were
        judge.judge(tried.origin, tried.schedule, tried.placement)
    first: tuple[tuple[Group, ...], ...] = ()
    if added:
        first = _extended(search, len(cluster.devices) - 1)
        counts += search.others
    timed = SearchTime(judge, time.perf_counter(), pace.deadline)
    other = WholeSearch(counts, search.open, judge, None, timed, first=first)
    if not added:  # the same operators on the same kinds of devices
        other.known_lines = search.known_lines
    with suppress(NetSplitError):  # known plans stand
        other.structures()
    return judge


def _better(changed: Judge, base: Judge) -> list[Tried]:
    """What was not tried without the change, and is faster with it than all that was; the best few."""
    both = min((each.iteration_s for each in changed.tried if each.fits and base.knows(each)), default=0.0)
    new = [each for each in changed.tried if each.fits and not base.knows(each) and each.iteration_s < both]
    return sorted(new, key=lambda tried: tried.rank)[:FEW]


def _extended(search: WholeSearch, new: int) -> tuple[tuple[Group, ...], ...]:
    """The groups of the best stages with another device: one more replica of any, or one more stage. Stages
    as they are are tried with the other numbers of micro-batches, too, which are not the gain's."""
    groups = search.best_groups()
    search.try_groups(search.others, groups)
    if not groups or len(groups) > MOST:
        return ((*groups, (new,)),)
    wider = [(*groups[:g], (*groups[g], new), *groups[g + 1 :]) for g in range(len(groups))]
    longer = [(*groups[:g], (new,), *groups[g:]) for g in range(1, len(groups) + 1)]
    replicates = search.answers.replicates(search.problem_of(search.counts[0]))
    return tuple(dict.fromkeys([*wider, *longer] if replicates else longer))


def _one_more(problem: Problem) -> Cluster:
    """With another device of the fastest kind, linked as the first of that kind is."""
    cluster, costs = problem.cluster, problem.costs
    seconds = {
        each.kind: sum(costs.total_s(v, each.kind) for v in problem.graph.nodes) for each in cluster.devices
    }
    like = min(cluster.devices, key=lambda each: seconds[each.kind])
    taken = {each.name for each in cluster.devices}
    numbered = (f"{like.name} again{f' {n}' * (n > 1)}" for n in count(1))
    new = replace(like, name=next(name for name in numbered if name not in taken))
    others = [each.name for each in cluster.devices if each is not like]
    between = cluster.links[like.name, others[-1]] if others else Link(0.0, 0.0)
    links = dict(cluster.links)
    for name in others:
        links[new.name, name], links[name, new.name] = (
            cluster.links[like.name, name],
            cluster.links[name, like.name],
        )
    links[new.name, like.name] = links[like.name, new.name] = between
    nics = tuple(
        replace(nic, devices=(*nic.devices, new.name)) if like.name in nic.devices else nic
        for nic in cluster.nics
    )
    return Cluster(cluster.name, (*cluster.devices, new), links, nics=nics)


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
    return problem.cluster.with_links(links)


CHANGES: dict[str, Callable[[Problem], Cluster]] = {
    "one more device like the fastest": _one_more,
    "10 % more memory on every device": _roomier,
    "10 % more bandwidth on every link": _wider,
}
