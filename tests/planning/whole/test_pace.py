"""A decision's time: what would end after it is not begun, and one plan is had whatever it takes."""

import time
from typing import Any

import pytest

from netsplit.partition.base import Problem
from netsplit.planning.decide import decide_whole
from netsplit.planning.whole import judge
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.program.schedules import GPipe
from netsplit.simulate import simulator
from netsplit.simulate.simulate import simulate
from tests.partition.builders import large_problem, trained
from tests.planning.test_proven import simulated


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def problem_of(m: int, nodes: int = 24, room: float = 9.0) -> Problem:
    return simulated(trained(large_problem(nodes, 2, room), 1.0), GPipe(m))


def simulations(monkeypatch: pytest.MonkeyPatch, clock: Clock, seconds: float) -> list[float]:
    """When each of a decision's simulations began, of so many seconds on the clock."""
    began: list[float] = []

    def slow(*args: Any, **keys: Any) -> Any:
        began.append(clock.now_s)
        clock.now_s += seconds
        return simulate(*args, **keys)

    for room in (judge, simulator):
        monkeypatch.setattr(room, "simulate", slow)
    return began


@pytest.mark.parametrize("each_s", [0.01, 0.1, 0.3])
def test_a_decision_ends_within_its_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, each_s: float
) -> None:
    """At 1.5 s nothing is annealed, which has clocks of its own."""
    problems = {m: problem_of(m) for m in (1, 2, 4)}
    began = simulations(monkeypatch, clock, each_s)
    whole = decide_whole(problems.__getitem__, (1, 2, 4), 8, AutoSchedule(time_limit_s=1.5))
    assert clock.now_s - 100.0 <= 1.5 * 1.1 + each_s  # the first, of which nothing was known
    assert whole.seconds == pytest.approx(clock.now_s - 100.0)
    assert len(began) >= 2


def test_a_decision_without_any_time_has_a_plan_and_a_bound(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(2)
    began = simulations(monkeypatch, clock, 5.0)
    whole = decide_whole(lambda m: problem, (2,), 8, AutoSchedule(time_limit_s=0.1))
    assert len(began) <= 3  # one to choose, one to verify, and one that fits where the first does not
    assert 0.0 < whole.bound_s <= whole.iteration_s
