"""`heft` and `dpos`: greedy list schedulers over the tasks of a training step (see `insertion`).

Sources: Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous
computing", IEEE TPDS 13(3), 2002, section 4. Yi et al., "Fast Training of Deep Learning Models over Multiple
GPUs" (FastT), Middleware 2020, section 5.1, Algorithm 1; its operator splitting (Algorithm 2) is `os_dpos`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.partition.engines.insertion.schedule import PartialSchedule, schedule_within_memory
from netsplit.partition.engines.insertion.tasks import StepTasks
from netsplit.partition.partitioner import Choice, Partitioner

__all__ = [
    "Dpos",
    "Heft",
    "Order",
    "fifo_starts",
    "longest_ranked_path",
    "max_ranks",
    "order_key",
    "sequenced",
]


@dataclass(frozen=True)
class Heft(Partitioner):
    """Tasks by falling upward rank, with mean seconds; each in the slot where it finishes first.

    On a plain DAG it is the paper's. A training step is a DAG of forwards and backwards (see
    `insertion`): a node goes where its forward's finish plus its own backward's seconds is least, and
    its backward follows it. A colocated set goes where its first node goes. The greedy choice never looks
    ahead, so with large messages or colocated sets it is easily worse than one device: that is the method.

    The report's objective is the schedule's length in seconds, in which no message waits for another.
    """

    name = "heft"
    optimises = "one step's time, greedily: each task's earliest finish"

    def choose(self, problem: Problem) -> Choice:
        instance = Instance.of(problem)
        tasks = StepTasks.of(instance)
        order = tasks.by_rank(mean_ranks(instance, tasks))
        schedule = schedule_within_memory(problem, self.name, tasks, order)
        return Choice(
            schedule.device_of(), schedule.start_of(), objective_s=schedule.makespan, notes=schedule.notes()
        )


def mean_ranks(instance: Instance, tasks: StepTasks) -> Floats:
    """[2n] upward ranks: a task's mean seconds over devices, a message's over pairs of devices."""
    pairs = ~np.eye(len(instance.devices), dtype=bool)
    latency, pace = (
        each[pairs].mean() if pairs.any() else 0.0 for each in (instance.latency_s, instance.seconds_per_byte)
    )
    return tasks.upward_ranks(tasks.seconds.mean(axis=1), tasks.messages * latency + tasks.nbytes * pace)


def fifo_starts(instance: Instance, where: Sequence[int]) -> dict[str, float]:
    """Node -> seconds at which its forward starts, where each device runs what is ready in order of arrival.

    A node is ready when the last message that it waits for has come; of nodes that become ready at once the
    first captured goes first. A message takes latency + bytes * seconds a byte and waits for no other.

    Args:
        where: [n] device of each node.
    """
    n, free = instance.n, [0.0] * len(instance.devices)
    missing = [len(instance.predecessors[v]) for v in range(n)]
    ready, start = [0.0] * n, [0.0] * n
    queue = [(0.0, v) for v in range(n) if not missing[v]]  # seconds at which it is ready, node
    while queue:
        now, v = heappop(queue)
        p = where[v]
        start[v] = max(now, free[p])
        free[p] = start[v] + float(instance.forward_s[v, p])
        came = dict.fromkeys(instance.successors[v].tolist(), free[p])
        for k in instance.makes[v].tolist():
            for w in instance.consumers[k].tolist():
                if (q := where[w]) != p:
                    seconds = instance.latency_s[p, q] + instance.nbytes[k] * instance.seconds_per_byte[p, q]
                    came[w] = max(came[w], free[p] + float(seconds))
        for w, seconds in came.items():
            ready[w] = max(ready[w], seconds)
            missing[w] -= 1
            if not missing[w]:
                heappush(queue, (ready[w], w))
    return dict(zip(instance.names, start, strict=True))


Order = Literal["priority", "fifo"]


@dataclass(frozen=True)
class Dpos(Partitioner):
    """The critical path on the device that runs it fastest, every other operation where it ends first.

    Ranks take the largest seconds over devices and links. The critical path starts at the task of
    the largest rank and goes on to the successor of the largest rank. Its device is the one with the
    least mean seconds over as many of the path's next nodes as fit on it; when the next one no longer
    fits, another device is chosen likewise. The order of execution is that of the start times.

    Where the paper leaves it open: ties for the path's device go to the one that takes more of the path, ties
    off the path to that device, then to the first; "as many as possible" stops at the first node that does
    not fit. A node's backward runs where its forward does, and its seconds count beside the finish time.

    Args:
        order: "fifo" keeps the devices, and orders operators as they become ready: without FastT's order
            enforcement, for comparison.
    """

    name = "dpos"
    optimises = "one step's time, greedily: the critical path's device, else each task's earliest finish"

    order: Order = "priority"

    def __post_init__(self) -> None:
        self.require_choice("order", Order)

    def choose(self, problem: Problem) -> Choice:
        schedule = sequenced(problem, StepTasks.of(Instance.of(problem)), self.name)
        key = order_key(schedule, self.order)
        return Choice(schedule.device_of(), key, objective_s=schedule.makespan, notes=schedule.notes())


def order_key(schedule: PartialSchedule, order: Order) -> dict[str, float]:
    """Node -> seconds by which it is ordered: its start as scheduled, or where no order is enforced."""
    if order == "priority":
        return schedule.start_of()
    return fifo_starts(schedule.instance, schedule.where[schedule.instance.atom_of].tolist())


def sequenced(problem: Problem, tasks: StepTasks, method: str) -> PartialSchedule:
    """Algorithm 1: the schedule of all tasks.

    Raises:
        InfeasibleError, TimeLimitError: as `schedule_within_memory`.
    """
    instance = Instance.of(problem)
    ranks = max_ranks(instance, tasks)
    path = longest_ranked_path(tasks, ranks)
    return schedule_within_memory(
        problem, method, tasks, tasks.by_rank(ranks), path, partial(_fastest_for, path)
    )


def max_ranks(instance: Instance, tasks: StepTasks) -> Floats:
    """[2n] upward ranks: a task's largest seconds over devices, a message's over pairs of devices."""
    pairs = ~np.eye(len(instance.devices), dtype=bool)
    latency, pace = np.unique([instance.latency_s[pairs], instance.seconds_per_byte[pairs]], axis=1)
    edge_s = np.outer(tasks.messages, latency) + np.outer(tasks.nbytes, pace)
    return tasks.upward_ranks(tasks.seconds.max(axis=1), edge_s.max(axis=1, initial=0.0))


def longest_ranked_path(tasks: StepTasks, ranks: Floats) -> list[int]:
    """Nodes on the critical path in its order; a node's forward and backward are listed once."""
    if not len(tasks.order):
        return []
    after: list[list[int]] = [[] for _ in range(2 * tasks.n)]
    for u, t in zip(tasks.source.tolist(), tasks.target.tolist(), strict=True):
        after[u].append(t)
    place = {t: i for i, t in enumerate(tasks.order.tolist())}
    options = tasks.order.tolist()
    nodes: dict[int, None] = {}
    while options:
        # Of equal parts the backward's path would else take another than the forward's.
        task = min(options, key=lambda t: (-ranks[t], t % tasks.n not in nodes, place[t]))
        nodes[task % tasks.n] = None
        options = after[task]
    return list(nodes)


def _fastest_for(path: list[int], schedule: PartialSchedule, task: int, devices: Ints) -> int:
    """Lines 9 to 12 of Algorithm 1: the device with the least mean seconds of the path's nodes that it can
    take, `task` first."""
    instance = schedule.instance
    total_s, atom_of = instance.forward_s + instance.backward_s, instance.atom_of.tolist()
    nodes = [v for v in path if schedule.where[atom_of[v]] < 0]
    nodes.sort(key=lambda v: v != task)
    atoms = list(dict.fromkeys(atom_of[v] for v in nodes))

    def score(p: int) -> tuple[float, int, int]:
        fitting = set(atoms[: schedule.room.run_length(atoms, p)])
        placeable = [v for v in nodes if atom_of[v] in fitting]
        return float(total_s[placeable, p].mean()), -len(placeable), p

    return min(devices.tolist(), key=score)
