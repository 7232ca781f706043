"""Cuts that an estimate hides are measured where they may gain; others are not."""

from functools import cache
from random import Random

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from netsplit.graph.ir import Graph, Node
from netsplit.partition import Dpos, OsDpos, Problem
from netsplit.partition.engines import exploring
from netsplit.planning.decide import decide
from netsplit.profile.costs import DeviceCosts, NodeSeconds
from netsplit.program import GPipe, Schedule
from netsplit.rewrite import Rewrite, Split, seconds
from tests.examples import tried
from tests.partition.meters import SlowParts
from tests.partition.methods.auto.test_in_parts import problem_of

pytestmark = pytest.mark.usefixtures("few_moves")
LAYER_S = 2e-3  # long enough to be worth cutting, short enough to be measured within the limit
WRONG = 5.0  # times what parts take is what is estimated of them


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


@pytest.mark.usefixtures("too_high")
def test_an_estimate_that_is_too_high_hides_nothing() -> None:
    """Without devices that measure it does; with them the plan takes what truly gains."""
    problem, method = problem_of(LAYER_S, schedule=GPipe(1)), OsDpos(time_limit_s=20.0)
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
