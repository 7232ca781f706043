"""Idle time at a pipeline's ends: by when a device can begin at the earliest, and how much is left after it.

    device of the hub   |hub|......................................|hub|
    any other           A    |first task ........... last task|    B

Device p computes from its first task's begin, a_p after the iteration's, to its last one's end, b_p
before the iteration's. So its work is at most T - a_p - b_p. Where nodes have no replicas:

*One device has the hub*, any node without replicas. On every path of a micro-batch from the hub to a task t
of another device, an edge lies between two devices. So t begins at A(t) at the earliest: a predecessor u is
on the hub's device, and sends what t reads, or it is on another, and A(u) holds,

    A(t) = max {head(t), max over u of least {head(u) + s(u) + transfer(u, t), A(u) + s(u)}}

with s(u) at its fastest, and A(hub) infinite: the least, as it is not known which is so. B(t), of what comes
after t, is the same of paths to the hub's backward.

*Devices begin with unlike nodes*: with what has no replicas, one device alone does. So of ascending a_p, the
k-th is at least the k-th least of the heads, and the k - 1st least A, of all atoms, where replicated atoms
count as often as there are devices; likewise b_p and tails. A device that does nothing of this has all of T,
which is at least any bound of T: what is said of the k-th is cut down to that. Then n devices, used or not,
do at most n T less the sum of the n first; where none of them has a hub, of its k-th least A.

Own construction, after the bound of Carlier (European J. Operational Research 1982) for alike machines, of
the least heads and tails.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netsplit.partition.bounds.iteration_tasks import AnySchedule, IterationTasks
from netsplit.partition.common.instance import Floats, Ints

__all__ = ["PipelineEnds"]

_HUBS = 8


@dataclass(frozen=True, eq=False)
class PipelineEnds:
    """Least seconds before and after each of the 3n tasks, on any device and on one that has not a hub."""

    alone: NDArray[np.bool_]  # [A] atoms without replicas
    atom: Ints  # [3n]
    timed: NDArray[np.bool_]  # [3n] tasks that take time
    anywhere: tuple[Floats, Floats]  # [3n] heads, and tails
    apart: dict[int, tuple[Floats, Floats]]  # by the hub: A [3n], and B

    @classmethod
    def of(cls, tasks: IterationTasks, schedule: AnySchedule, alone: NDArray[np.bool_]) -> PipelineEnds:
        atom = tasks.graph.instance.atom_of[tasks.node]
        timed = tasks.work_s.max(axis=1, initial=0.0) > 0
        able = [v for v in range(tasks.graph.n) if timed[v] and alone[atom[v]]]
        ends = cls(alone, atom, timed, (tasks.head_s, tasks.tail_s), {})
        if able:
            paths, n = _HubPaths(tasks, schedule), tasks.graph.n
            left_s = np.where(timed, tasks.tail_s, np.inf)[: 2 * n].reshape(2, n).min(axis=0)
            for early in (tasks.head_s, left_s):
                for hub in sorted(able, key=early.__getitem__)[:_HUBS]:
                    ends.apart[hub] = paths.begins_s(hub), paths.ends_s(hub)
        return ends

    def outside_s(
        self, window: NDArray[np.bool_], devices: int, known_s: float, without: int | None = None
    ) -> float:
        """Seconds that so many devices do nothing of a window [3n] of tasks in an iteration, in sum.

        Args:
            known_s: a bound of the iteration.
            without: a hub that none of the devices has.
        """
        window = window & self.timed
        idle_s = np.zeros(devices)
        for end in (0, 1):
            ranked_s = self._least(window, self.anywhere[end], devices)
            for hub, seconds in self.apart.items():
                first = hub != without  # its device is one of them, perhaps
                others_s = self._least(window, seconds[end], devices)[: devices - first]
                ranked_s[first:] = np.maximum(ranked_s[first:], others_s)
            idle_s += ranked_s
        return float(np.minimum(idle_s, known_s).sum())

    def _least(self, window: NDArray[np.bool_], seconds: Floats, devices: int) -> Floats:
        """[devices] the least of the window's atoms, ascending; infinite where there are no more of them."""
        of_atom = np.full(len(self.alone), np.inf)
        np.minimum.at(of_atom, self.atom[window], seconds[window])
        counted = np.sort(np.repeat(of_atom, np.where(self.alone, 1, devices)))[:devices]
        return np.concatenate([counted, np.full(devices - len(counted), np.inf)])


class _HubPaths:
    """Paths between a hub and tasks of other devices."""

    def __init__(self, tasks: IterationTasks, schedule: AnySchedule) -> None:
        self.tasks, graph, n = tasks, tasks.graph, tasks.graph.n
        latency_s, latency_back_s, pace, pace_back, message_s, message_back_s = graph.instance.pair_kinds
        self._seconds: dict[tuple[int, int], float] = {}
        for (v, w), (sent, returned) in graph.edges.items():
            if not len(latency_s) or graph.instance.atom_of[v] == graph.instance.atom_of[w]:
                continue
            self._seconds[v, w] = float((latency_s + sent * pace + message_s).min())
            if returned >= 0 and schedule.training:
                back = latency_back_s + returned * pace_back + message_back_s
                self._seconds[n + w, n + v] = float(back.min())
        later = np.flatnonzero(graph.instance.trained).tolist() if schedule.training else []
        self._waiting = [(n + v, 2 * n + v) for v in later]

    def _between(self, u: int, t: int) -> float:
        """Seconds of a transfer from u to t, one of them on the hub's device; infinite: never."""
        atom_of, n = self.tasks.graph.instance.atom_of, self.tasks.graph.n
        same = atom_of[u % n] == atom_of[t % n]
        return float("inf") if same else self._seconds.get((u, t), 0.0)

    def begins_s(self, hub: int) -> Floats:
        """[3n] A, of a hub's forward on; infinite for its atom, of which no other device has any."""
        tasks, graph = self.tasks, self.tasks.graph
        of_hub = self._hub_tasks(hub)
        begin_s = np.where(of_hub, np.inf, tasks.head_s)
        for t in graph.order:
            for u in graph.before[t] if not of_hub[t] else ():
                left_s = tasks.head_s[u] + self._between(u, t)
                begin_s[t] = max(begin_s[t], tasks.fastest_s[u] + min(left_s, begin_s[u]))
        for u, t in self._waiting:
            begin_s[t] = max(begin_s[t], tasks.fastest_s[u] + begin_s[u])
        return begin_s

    def ends_s(self, hub: int) -> Floats:
        """[3n] B, up to a hub's backward; infinite for its atom."""
        tasks, graph = self.tasks, self.tasks.graph
        of_hub = self._hub_tasks(hub)
        end_s = np.where(of_hub, np.inf, tasks.tail_s)
        for t in reversed(graph.order):
            for w in graph.after[t] if not of_hub[t] else ():
                back_s = tasks.tail_s[w] + self._between(t, w)
                end_s[t] = max(end_s[t], tasks.fastest_s[w] + min(back_s, end_s[w]))
        return end_s

    def _hub_tasks(self, hub: int) -> NDArray[np.bool_]:
        atom_of = self.tasks.graph.instance.atom_of
        return np.asarray(atom_of[self.tasks.node] == atom_of[hub])
