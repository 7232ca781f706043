"""A decision's time: what would end after it is not begun, and one plan is had whatever it takes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_bound import LIMIT_S
from netsplit.planning import decide
from netsplit.planning.whole import bounds, judge, whole_plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.bounds import of_every_plan_s
from netsplit.planning.whole.whole_plan import decide_whole
from netsplit.program.schedules import GPipe
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

    for room in (judge, decide):
        monkeypatch.setattr(room, "simulate", slow)
    return began


@pytest.mark.parametrize("each_s", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("gains", [False, True])
def test_a_decision_ends_within_its_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, each_s: float, gains: bool
) -> None:
    """At 1.5 s nothing is annealed, which has clocks of its own."""
    problems = {m: problem_of(m) for m in (1, 2, 4)}
    began = simulations(monkeypatch, clock, each_s)
    whole = decide_whole(problems.__getitem__, (1, 2, 4), 8, AutoSchedule(time_limit_s=1.5), gains=gains)
    assert clock.now_s - 100.0 <= 1.5 * 1.1 + each_s  # the first, of which nothing was known
    assert whole.seconds == pytest.approx(clock.now_s - 100.0)
    assert len(began) >= 2


@pytest.mark.parametrize(("limit_s", "loads"), [(1.5, 0), (2.5, 1)])
def test_what_annealing_needs_is_compiled_before_the_time_begins(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, limit_s: float, loads: int
) -> None:
    """Where there is time to anneal; with two simulations in it there is none left here."""
    problem, compiled = problem_of(2), list[float]()

    def compiles() -> None:
        compiled.append(clock.now_s)
        clock.now_s += 60.0

    monkeypatch.setattr(whole_plan, "load_kernels", compiles)
    began = simulations(monkeypatch, clock, 0.4)
    whole = decide_whole(lambda m: problem, (2,), 8, AutoSchedule(time_limit_s=limit_s), gains=False)
    assert len(compiled) == loads
    assert whole.seconds <= limit_s * 1.1 + 0.4
    assert len(began) >= 2
    assert compiled == [100.0][:loads]


def test_a_decision_without_any_time_has_a_plan_and_a_bound(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(2)
    began = simulations(monkeypatch, clock, 5.0)
    whole = decide_whole(lambda m: problem, (2,), 8, AutoSchedule(time_limit_s=0.1), gains=True)
    assert len(began) <= 3  # one to choose, one to verify, and one that fits where the first does not
    assert 0.0 < whole.bound_s <= whole.iteration_s
    assert whole.gains == ()


def test_the_bound_of_every_number_of_micro_batches_is_the_least_of_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems = {m: problem_of(m, 12) for m in (1, 2, 4, 8)}
    open_ = AutoSchedule()
    each = [of_every_plan_s(problems.__getitem__, (m,), open_) for m in problems]
    asked: list[float] = []
    own = bounds.iteration_bound_s

    def noted(problem: Problem, schedule: Any, limit_s: float) -> float:
        asked.append(limit_s)
        return own(problem, schedule, limit_s)

    monkeypatch.setattr(bounds, "iteration_bound_s", noted)
    assert of_every_plan_s(problems.__getitem__, tuple(problems), open_) == min(each)
    assert asked[:4] == [0.0] * 4
    assert LIMIT_S in asked[4:]
