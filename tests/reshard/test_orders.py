"""Senders and orders between hosts: against one another, and against every order there is."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.reshard.orders import (
    HostSchedule,
    HostTask,
    depth_first,
    greedy,
    naive,
    size_only,
    timed,
)


@st.composite
def drawn_tasks(draw: st.DrawFn, most: int) -> list[HostTask]:
    """Between up to three hosts and up to three others; some alike, seconds of whole or odd numbers."""
    senders = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True)
    receivers = st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=3, unique=True)
    seconds = st.sampled_from([1.0, 2.0, 3.0, 0.7, 1.3])
    tasks = []
    for _ in range(draw(st.integers(1, most))):
        hosts, takes = draw(senders), draw(seconds)
        slower = draw(st.sampled_from([1.0, 1.5]))
        each = tuple(takes * (slower if host == "c" else 1.0) for host in hosts)
        tasks.append(HostTask(tuple(hosts), each, tuple(draw(receivers))))
    return tasks


def is_sound(tasks: list[HostTask], schedule: HostSchedule) -> bool:
    """Each task once, from a host that has it; no two at once on a NIC; seconds are the last one's end."""
    spans: dict[tuple[str, str], list[tuple[float, float]]] = {}
    last = 0.0
    for i, task in enumerate(tasks):
        start = schedule.starts[i]
        end = start + task.seconds[schedule.chosen[i]]
        spans.setdefault((task.senders[schedule.chosen[i]], "out"), []).append((start, end))
        for host in task.receivers:
            spans.setdefault((host, "in"), []).append((start, end))
        last = max(last, end)
    apart = all(
        b <= c
        for each in spans.values()
        for (_, b), (c, _) in zip(sorted(each), sorted(each)[1:], strict=False)
    )
    return apart and sorted(schedule.order) == list(range(len(tasks))) and schedule.seconds == last


@settings(max_examples=80, deadline=None)
@given(tasks=drawn_tasks(most=14), seed=st.integers(0, 5))
def test_greedy_is_never_above_naive_nor_size_only(tasks: list[HostTask], seed: int) -> None:
    schedules = naive(tasks), size_only(tasks), greedy(tasks, seed)
    assert all(is_sound(tasks, each) for each in schedules)
    assert schedules[2].seconds <= min(schedules[0].seconds, schedules[1].seconds)


@settings(max_examples=40, deadline=None)
@given(tasks=drawn_tasks(most=4))
def test_depth_first_is_the_best_of_every_order_and_every_sender(tasks: list[HostTask]) -> None:
    every = (
        timed(tasks, order, chosen).seconds
        for order in permutations(range(len(tasks)))
        for chosen in product(*(range(len(task.senders)) for task in tasks))
    )
    assert depth_first(tasks, naive(tasks)).seconds == pytest.approx(min(every), rel=1e-12)
