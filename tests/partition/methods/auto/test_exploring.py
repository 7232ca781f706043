"""Cuts that an estimate hides are measured where they may gain; others are not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from operator import itemgetter
from random import Random

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from netsplit.graph.ir import Graph, Node
from netsplit.partition import Auto, Dpos, OsDpos, Partitioner, Problem
from netsplit.partition.engines import exploring
from netsplit.partition.engines.exploring import Explorer, cuts_of_longest
from netsplit.partition.methods.auto.part_structures import structures
from netsplit.planning.decide import decide
from netsplit.profile.costs import DeviceCosts, NodeSeconds
from netsplit.profile.operator_keys import unmeasured
from netsplit.program import GPipe, Schedule
from netsplit.rewrite import Rewrite, Split, seconds
from tests.cover import covering
from tests.examples import tried
from tests.partition.meters import SlowParts
from tests.partition.methods.auto.test_in_parts import problem_of

pytestmark = pytest.mark.usefixtures("few_moves")
LAYER_S = 2e-3  # long enough to be worth cutting, short enough to be measured within the limit
WRONG = 5.0  # times what parts take is what is estimated of them
WHOLE = Auto(time_limit_s=8.0, starts=2)
IN_PARTS = replace(WHOLE, splits=True)


@pytest.fixture
def too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates of what a rewrite makes."""
    right = seconds._estimated

    def wrong(
        costs: DeviceCosts, before: Graph, after: Graph, new: dict[str, Node | None], *works: object
    ) -> dict[str, NodeSeconds]:
        made = right(costs, before, after, new, *works)  # type: ignore[arg-type]
        return {name: own.scaled(1 / WRONG) for name, own in made.items()}

    monkeypatch.setattr(seconds, "_estimated", wrong)


def right_by(problem: Problem) -> tuple[SlowParts, Problem]:
    """On devices where parts take what they should."""
    return SlowParts.on(problem, lambda rewrites: 1 / WRONG)


@covering(method=[IN_PARTS, OsDpos(time_limit_s=20.0)], schedule=[None, GPipe(1)])
def test_an_estimate_that_is_too_high_hides_nothing(
    too_high: None, method: Partitioner, schedule: Schedule | None
) -> None:
    """Without devices that measure it does; with them the plan takes what truly gains."""
    problem = problem_of(LAYER_S, schedule=schedule)
    hidden = decide(problem, method)
    assert hidden.placement.rewrites == ()
    meter, problem = right_by(problem)
    plan = decide(problem, method)
    assert any(isinstance(each, Split) for each in plan.placement.rewrites)
    assert plan.objective_s < 0.7 * hidden.objective_s
    notes = plan.placement.report.notes["explored"]
    assert 0 < len(notes["cuts"]) <= exploring.MOST
    assert plan.placement.rewrites in meter.asked, "what is taken was measured"


@cache
def whole_s(schedule: Schedule | None) -> float:
    return decide(problem_of(LAYER_S, schedule=schedule), Dpos()).objective_s


@example(seed=1, schedule=None)
@settings(deadline=None, max_examples=tried(3), suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**16), schedule=st.sampled_from([None, GPipe(1)]))
def test_what_is_measured_to_gain_nothing_is_not_kept(seed: int, schedule: Schedule | None) -> None:
    """Whatever parts take, by the rewrites that they are first measured with."""

    def times(rewrites: tuple[Rewrite, ...]) -> float:
        return 4 ** Random(f"{seed} {rewrites}").uniform(-1.0, 2.0)

    _, problem = SlowParts.on(problem_of(LAYER_S, schedule=schedule), times)
    plan = decide(problem, OsDpos(time_limit_s=20.0))
    event("in parts" if plan.placement.rewrites else "whole")
    assert plan.objective_s <= whole_s(schedule) * (1 + 1e-9)


@cache
def cuts_to_try() -> tuple[Problem, tuple[tuple[str, tuple[Rewrite, ...]], ...]]:
    problem = problem_of(LAYER_S)
    cuts = [(each.origin, each.rewrites()) for each in structures(problem)]
    return problem, (*filter(itemgetter(1), cuts), *cuts_of_longest(problem, {}, [(1.0, 1.0)]))


def explorer_of(than_s: float, limit_s: float) -> tuple[SlowParts, Explorer]:
    problem, cuts = cuts_to_try()
    meter, problem = SlowParts.on(problem, lambda rewrites: 1.0)
    explorer = Explorer(problem, than_s, limit_s, {})
    for origin, cut in cuts:
        explorer.consider(origin, cut)
    return meter, explorer


@settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))
@given(than_s=st.floats(1e-6, 4 * LAYER_S), limit_s=st.floats(0.0, 8.0))
def test_measuring_is_bounded_and_of_what_may_gain(than_s: float, limit_s: float) -> None:
    """By the number of cuts and by the seconds to be expected; the most promising is the first."""
    meter, explorer = explorer_of(than_s, limit_s)
    first = explorer.waiting[0] if explorer.waiting else None
    problem = explorer.measure()
    measured = explorer.measured
    assert len(measured) <= exploring.MOST
    assert sum(each.measuring_s for each in measured) <= limit_s
    assert all(each.least_s < than_s for each in measured)
    assert [each.rewrites for each in measured] == meter.asked
    if first is not None and first.measuring_s <= limit_s:
        assert measured[0].rewrites == first.rewrites
    for each in measured:
        own = problem.rewritten(each.rewrites)
        assert all(not unmeasured(costs, problem.graph, own.graph) for costs in own.costs.devices.values())
