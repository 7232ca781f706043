"""Who is named first when a call fails: the cause, never one that waits for it."""

from __future__ import annotations

import time

import pytest

from netsplit.program.instructions import Forward, Recv, Reduce, Step
from netsplit.runtime.workers.diagnosis import Findings, Standing, diagnose
from netsplit.runtime.workers.messages import Reply
from netsplit.runtime.workers.watchdog import Pace
from tests.messages import tells

COMPUTING = Standing(Forward(1, 0), None)
WAITING = Standing(Forward(2, 0), Recv("k@c", "k", 0, "b", False, 7))
SUMMING = Standing(Step(), Reduce(("a", "b"), 9, kind="gradients"))
TIMED_OUT = Reply(error="device a waited 2 s", known=True, waited=True)


def sentence(**facts: object) -> str:
    given = {"asked": [0, 1, 2], "dead": {}, "replies": {}, "quiet": [], "standings": {}}
    return diagnose(Findings(**given | facts), "abc".__getitem__, "train")  # type: ignore[arg-type]


def test_who_computes_while_others_wait_is_the_cause() -> None:
    said = sentence(replies={0: TIMED_OUT}, standings={0: SUMMING, 1: COMPUTING, 2: WAITING})
    assert said.startswith("worker b hangs")
    assert tells(said, "forward of segment 1, micro-batch 0", "device a waited 2 s", "c stood")
    assert tells(
        said, "forward of segment 2, micro-batch 0", "'k'", "micro-batch 0 from b", "cluster.timeout_s"
    )


def test_who_died_is_the_cause_and_who_computes_is_not() -> None:
    said = sentence(dead={1: "died"}, replies={0: TIMED_OUT}, standings={1: SUMMING, 2: COMPUTING})
    assert said.startswith("worker b died")
    assert tells(said, "optimiser step", "sum of gradients over a, b", "device a waited 2 s")
    assert tells(said, "c stood", "forward of segment 1, micro-batch 0")
    assert "hangs" not in said


def test_who_shows_no_sign_of_life_comes_before_who_raised() -> None:
    said = sentence(quiet=[2], replies={0: Reply(error="ValueError: 3"), 1: TIMED_OUT})
    assert said.startswith("worker c ")
    assert tells(said, "'train'", "worker a", "ValueError: 3")


def test_a_refusal_is_said_as_it_is_and_nobody_else_is_accused() -> None:
    assert sentence(asked=[0], replies={0: Reply(error="no room.", known=True)}) == "worker a: no room."


def test_a_call_is_late_against_its_own_past_and_that_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace = Pace()
    for seconds in (0.5, 0.6, 0.7):
        assert pace.late("train", now - 100) is None
        pace.took("train", seconds)
    assert pace.late("train", now - 1.7) is None
    assert pace.late("predict", now - 100) is None
    assert pace.late("train", now - 1.9) == 0.6
    assert pace.late("train", now - 9) is None
    now += 31
    assert pace.late("train", now - 9) == 0.6
