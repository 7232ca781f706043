"""A decision's time: what would end after it is not begun, and one plan is had whatever it takes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from netsplit.errors import TimeLimitError
from netsplit.partition import METHODS
from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_bound import LIMIT_S
from netsplit.planning import decide
from netsplit.planning.fitting import fitted
from netsplit.planning.whole import bounds, judge, whole_plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.bounds import of_every_plan_s
from netsplit.planning.whole.judge import Judge
from netsplit.planning.whole.pace import SimulationPace
from netsplit.planning.whole.whole_plan import decide_whole
from netsplit.program.schedules import GPipe, OneFOneB
from netsplit.simulate.simulate import simulate
from tests.partition.builders import large_problem, trained, with_capacities
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


def test_what_would_end_too_late_is_not_simulated_once_something_fits(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(4)
    began = simulations(monkeypatch, clock, 2.0)
    pace = SimulationPace(clock.now_s + 5.0)
    judged = Judge(lambda m: problem, True, pace=pace)
    first, second, third = (
        METHODS[name]().partition(problem) for name in ("single", "round_robin", "balanced")
    )
    assert judged.judge("single", GPipe(4), first) is not None
    assert not judged.affords(GPipe(4), second)  # many more instructions than one device has
    assert judged.judge("round_robin", GPipe(4), second) is None
    assert judged.judge("single", OneFOneB(4), first) is not None
    assert judged.judge("balanced", GPipe(4), third) is None
    assert len(began) == 2


def test_what_does_not_fit_is_told_without_recomputation_where_there_is_no_time_for_that(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(4)
    problem = with_capacities(problem, [problem.cluster.devices[0].capacity_bytes, 1])
    simulations(monkeypatch, clock, 2.0)
    judged = Judge(lambda m: problem, True, pace=SimulationPace(clock.now_s + 5.0))
    first = METHODS["single"]().partition(problem)
    fits = judged.judge("single", GPipe(4), first)
    assert fits is not None
    assert fits.fits
    small = problem.cluster.devices[1].name
    other = judged.judge("other", GPipe(4), replace(first, device_of=dict.fromkeys(first.device_of, small)))
    assert other is not None
    assert not other.fits
    assert not other.recomputes


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


def test_a_bound_without_time_for_linear_programmes_holds(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, open_ = problem_of(4, 12), AutoSchedule()
    full = of_every_plan_s(lambda m: problem, (4,), open_)
    own = bounds.iteration_bound_s

    def slow(*args: Any) -> float:
        clock.now_s += 2.0
        return own(*args)

    monkeypatch.setattr(bounds, "iteration_bound_s", slow)
    for left_s in (1.0, -1.0):
        assert 0.0 < of_every_plan_s(lambda m: problem, (4,), open_, until=clock.now_s + left_s) <= full


def test_a_method_that_fits_nowhere_is_asked_no_more_when_the_time_is_up() -> None:
    problem = problem_of(2)
    tight = with_capacities(problem, [1, 1])
    with pytest.raises(TimeLimitError):
        fitted(replace(tight, memory="lifetimes"), METHODS["m_etf"](), until=0.0)
