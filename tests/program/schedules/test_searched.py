"""`searched`: never worse than what has a name, within its memory, by its own model and as simulated."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import ConfigError
from netsplit.program.schedules import (
    SCHEDULES,
    ZBH1,
    ZBV,
    Compute,
    GPipe,
    OneFOneB,
    Pipeline,
    Schedule,
    Searched,
)
from netsplit.program.schedules.base import Phase, TaskTimes, begin_all, by_device
from netsplit.program.schedules.search import most_pairs
from netsplit.simulate.simulator import Simulator
from tests.program.schedules.test_schedules import chain, pipelines
from tests.simulate.drawn import Drawn, programs

QUICK = settings(deadline=None, max_examples=15)


def timed(pipeline: Pipeline, seed: int, least: float = 0.2) -> Pipeline:
    """With drawn seconds of segments and transfers; parts of a backward take a little more than the whole."""
    rng = random.Random(seed)
    computing: dict[tuple[Phase, int, str], float] = {}
    for s, devices in enumerate(pipeline.devices):
        forward, part = rng.uniform(least, 1.0), rng.uniform(0.2, 0.8)
        for name in devices:
            computing["forward", s, name] = forward
            computing["backward", s, name] = 2 * forward
            computing["input", s, name] = 2 * forward * part + 0.01
            computing["weight", s, name] = 2 * forward * (1 - part) + 0.01
    moving = {
        (u, s, p, q): rng.uniform(0.0, 0.3)
        for s, feeds in enumerate(pipeline.feeders)
        for u in feeds
        for p in pipeline.devices[u]
        for q in pipeline.devices[s]
        if p != q
    }
    return replace(pipeline, times=TaskTimes(computing, moving, moving))


def known(pipeline: Pipeline) -> TaskTimes:
    assert pipeline.times is not None
    return pipeline.times


def span(pipeline: Pipeline, order: list[Compute]) -> float:
    begun = begin_all(pipeline, by_device(pipeline, order), known(pipeline))
    assert begun is not None
    return begun.makespan


@QUICK
@given(pipelines(), st.integers(0, 99), st.integers(1, 4), st.sampled_from([1.0, 2.0, None]), st.booleans())
def test_no_named_order_that_keeps_as_little_is_shorter(
    pipeline: Pipeline, seed: int, microbatches: int, kept: float | None, split: bool
) -> None:
    pipeline = timed(pipeline, seed)
    schedule = Searched(microbatches, kept, delay_weights=split)
    order, limits = schedule.order(pipeline), schedule.limits(pipeline)
    assert all(most <= limits[name] for name, most in most_pairs(pipeline, order).items())
    assert split or all(phase in ("forward", "backward") for phase, _, _ in order)
    for name, kind in SCHEDULES.items():
        if name in ("searched", "pipedream", "single_batch"):
            continue
        other = kind(microbatches)  # type: ignore[call-arg]
        named = other.order(pipeline)
        fits = all(most <= limits[name] for name, most in most_pairs(pipeline, named).items())
        if fits and (split or not other.delay_weights):
            assert span(pipeline, order) <= span(pipeline, named) * (1 + 1e-9)


def test_on_an_uneven_chain_it_is_shorter_than_every_named_one_in_the_memory_of_1f1b() -> None:
    pipeline = timed(chain(4), 1)
    order = Searched(16).order(pipeline)
    assert span(pipeline, order) < 0.95 * span(pipeline, OneFOneB(16).order(pipeline))
    assert max(most_pairs(pipeline, order).values()) == 4


@settings(QUICK, max_examples=6)
@given(programs(schedules=[GPipe(3)], disturbed=False, replicated=False), st.booleans())
def test_as_simulated_it_is_never_slower_than_the_named_ones(drawn: Drawn, recompute: bool) -> None:
    graph, cluster, costs = drawn.problem.graph, drawn.cluster, drawn.costs

    def seconds(schedule: Schedule) -> float:
        return Simulator(graph, cluster, costs, schedule)(drawn.placement).iteration_s

    searched = seconds(Searched(4, kept=None, recompute=recompute))
    for kind in (GPipe, OneFOneB, ZBH1, ZBV):
        assert searched <= seconds(kind(4, recompute=recompute)) * (1 + 1e-9)


def test_what_cannot_be_kept_is_refused() -> None:
    for kept in (0, -1.0, "1", True):
        with pytest.raises(ConfigError, match=r"schedule\.kept is .*: give a number above 0, or null"):
            Searched(4, kept)  # type: ignore[arg-type]
