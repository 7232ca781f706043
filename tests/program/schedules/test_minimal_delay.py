"""Weights delayed as little as needed: where gradients travel, and never to a longer order than without."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.program.schedules import EagerOneFOneB, Interleaved, OneFOneB, Pipeline
from netsplit.program.schedules.base import TaskTimes
from tests.program.schedules.test_schedules import chain, pipelines
from tests.program.schedules.test_searched import known, span, timed

QUICK = settings(deadline=None, max_examples=25)
KINDS = (OneFOneB, EagerOneFOneB, Interleaved)


def moving(stages: int, transfer_s: float, split_s: float = 0.0) -> Pipeline:
    """A chain: forward 1, backward 2 of which each half is a part, and both ways of a transfer."""
    line = chain(stages)
    homes = [devices[0] for devices in line.devices]
    seconds = {"forward": 1.0, "backward": 2.0, "input": 1.0 + split_s, "weight": 1.0 + split_s}
    computing = {(phase, s, p): took for phase, took in seconds.items() for s, p in enumerate(homes)}
    ways = {(s, s + 1, homes[s], homes[s + 1]): transfer_s for s in range(stages - 1)}
    return replace(line, times=TaskTimes(computing, ways, ways))  # type: ignore[arg-type]


@QUICK
@given(pipelines(), st.integers(0, 99), st.integers(1, 5), st.sampled_from(KINDS))
def test_the_order_has_every_task_once_and_is_as_short_as_either(
    pipeline: Pipeline, seed: int, microbatches: int, kind: type[OneFOneB]
) -> None:
    pipeline = timed(pipeline, seed)
    order = kind(microbatches, delay_weights="minimal").order(pipeline)
    whole = kind(microbatches).order(pipeline)
    halves = Counter(("backward", s, i) for phase, s, i in order if phase == "input")
    assert Counter(task for task in order if task[0] not in ("input", "weight")) + halves == Counter(whole)
    assert halves == Counter(("backward", s, i) for phase, s, i in order if phase == "weight")
    assert span(pipeline, order) <= span(pipeline, whole) * (1 + 1e-9)
    split = {s for phase, s, _ in order if phase == "input"}
    gradients_go = {v for (_, v, p, q), took in known(pipeline).returning.items() if took > 0 and p != q}
    assert split <= gradients_go & pipeline.trained


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_on_its_way_is_covered(kind: type[OneFOneB]) -> None:
    """Two stages, transfers as long as the weights' part: the device before need not wait for that part."""
    pipeline = moving(2, 1.0)
    assert span(pipeline, kind(4, delay_weights="minimal").order(pipeline)) < span(
        pipeline, kind(4).order(pipeline)
    )
