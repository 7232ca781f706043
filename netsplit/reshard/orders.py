"""The ways to choose senders and an order, by name; and the randomised greedy one (AlpaComm, section 3.2)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from netsplit.errors import ReshardError
from netsplit.reshard.depth_first import depth_first
from netsplit.reshard.exact import exact
from netsplit.reshard.host_schedule import HostSchedule, HostTask, busiest_nic_s, naive, size_only, timed

__all__ = ["AUTO_ORDERS", "ORDERS", "greedy", "order_named"]

Chooser: TypeAlias = Callable[[Sequence[HostTask], int], HostSchedule]
"""From tasks and a seed to a schedule."""

_ROUNDS = 8
_DRAWS = 16
_LOOKS = 200_000  # at a task, by the depth-first search


def greedy(tasks: Sequence[HostTask], seed: int, rounds: int = _ROUNDS, draws: int = _DRAWS) -> HostSchedule:
    """Sets of tasks that share no NIC, one after another, each the largest of some drawn ones.

    Never longer than `naive` and `size_only`, with which it begins.

    Args:
        rounds: whole schedules that are made.
        draws: random orders of what is left, for each set.
    """
    best = min(naive(tasks), size_only(tasks), key=lambda each: each.seconds)
    drawn = random.Random(seed)
    least_s = busiest_nic_s(tasks)
    for _ in range(rounds):
        if best.seconds <= least_s:
            break
        left: dict[HostTask, list[int]] = {}
        for i in reversed(range(len(tasks))):
            left.setdefault(tasks[i], []).append(i)
        order: list[int] = []
        chosen = [0] * len(tasks)
        load: dict[str, float] = {}
        while left:
            sets = (_disjoint(left, load, drawn) for _ in range(draws if len(left) > 1 else 1))
            largest = max(sets, key=lambda each: sum(1 + len(task.receivers) for task in each))
            for task, s in sorted(largest.items(), key=lambda each: -each[0].seconds[each[1]]):
                i = left[task].pop()
                if not left[task]:
                    del left[task]
                order.append(i)
                chosen[i] = s
                load[task.senders[s]] = load.get(task.senders[s], 0.0) + task.seconds[s]
        schedule = timed(tasks, order, chosen)
        if schedule.seconds < best.seconds:
            best = schedule
    return best


def _disjoint(
    left: Mapping[HostTask, Sequence[int]], load: Mapping[str, float], drawn: random.Random
) -> dict[HostTask, int]:
    """Task -> index of its sender: those that fit beside one another, in an order that is drawn.

    Equal tasks share NICs, so that one of them is in it at most: the sooner the more there are of them.
    """
    sending: set[str] = set()
    receiving: set[str] = set()
    fitting: dict[HostTask, int] = {}
    for task in sorted(left, key=lambda task: drawn.expovariate(len(left[task]))):
        free = [s for s, host in enumerate(task.senders) if host not in sending]
        if not free or not receiving.isdisjoint(task.receivers):
            continue
        s = min(free, key=lambda s: (load.get(task.senders[s], 0.0) + task.seconds[s], drawn.random()))
        fitting[task] = s
        sending.add(task.senders[s])
        receiving.update(task.receivers)
    return fitting


def _searched(tasks: Sequence[HostTask], seed: int) -> HostSchedule:
    return depth_first(tasks, greedy(tasks, seed), most_nodes=_LOOKS // max(len(tasks), 10))


def _solved(tasks: Sequence[HostTask], seed: int) -> HostSchedule:
    return exact(tasks, greedy(tasks, seed), seed)


ORDERS: dict[str, Chooser] = {
    "naive": lambda tasks, seed: naive(tasks),
    "size_only": lambda tasks, seed: size_only(tasks),
    "greedy": greedy,
    "depth_first": _searched,
    "exact": _solved,
}
AUTO_ORDERS = ("naive", "size_only", "greedy", "depth_first")
"""What auto tries: all but the solver."""


def order_named(name: str) -> Chooser:
    """One of `ORDERS`.

    Raises:
        ReshardError: there is none of that name.
    """
    if name not in ORDERS:
        raise ReshardError(f"order is '{name}': give auto, {', '.join(ORDERS)}.")
    return ORDERS[name]
