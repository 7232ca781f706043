"""A forward computed twice leaves what it leaves when computed once: buffers, random numbers, bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.program import GPipe, Program, Schedule
from netsplit.program.instructions import Forward
from netsplit.program.schedules import ZBH1, AsyncOneFOneB, EagerOneFOneB, OneFOneB
from tests.cover import covering
from tests.nets import CASES, DRAWING, DROPPED, Case
from tests.runtime.equivalence.running import (
    PATIENT,
    assert_same,
    batches_of,
    captured_for,
    compiled,
    cut,
    local,
    plain,
    scattered,
)
from tests.runtime.references import assert_same_bits

SCHEDULES: dict[str, Schedule] = {
    "gpipe": GPipe(4),
    "1f1b": OneFOneB(4),
    "eager_1f1b+delayed": EagerOneFOneB(4, delay_weights=True),
    "zb_h1": ZBH1(4),
    "pipedream": AsyncOneFOneB(4),
}
WITH_BUFFERS = ("chain", "cells", "u_shape", "shared_norm", "assigned", "in_place")


def recomputing(schedule: Schedule, recompute: object = True) -> Schedule:
    return replace(schedule, recompute=recompute)  # type: ignore[type-var]


def recomputed(program: Program) -> int:
    return sum(
        isinstance(ins, Forward) and ins.recompute for each in program.instructions.values() for ins in each
    )


@covering(name=CASES, schedule=SCHEDULES)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_recomputation_is_bit_for_bit_what_it_replaces(name: str, schedule: str, data: st.DataObject) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    graph = captured_for(case, order)
    placed = scattered(data, graph, 3)
    once, twice = (compiled(graph, placed, 3, each) for each in (order, recomputing(order)))
    assert_same_bits(local(twice, case, batches_of(case)), local(once, case, batches_of(case)))


@pytest.mark.parametrize("name", WITH_BUFFERS)
def test_buffers_are_updated_once(name: str) -> None:
    """Nothing else in this file would notice if both ways updated them twice."""
    case = CASES[name]
    graph = captured_for(case, GPipe(4))
    program = compiled(graph, cut(graph, [0.3, 0.7]), 3, GPipe(4, recompute=True))
    assert recomputed(program)
    state = local(program, case, batches_of(case, 3)).state
    wanted = plain(name, 2, 3).state
    buffers = [key for key, _ in case.fresh().named_buffers()]
    assert buffers
    for key in buffers:
        torch.testing.assert_close(state[key], wanted[key], rtol=1e-12, atol=1e-12)
        if key.endswith(("num_batches_tracked", "count")):
            assert int(state[key]) == 12 * (3 if name == "shared_norm" else 1)


@covering(name=[*CASES, "dropped", "drawing"], schedule=SCHEDULES, recompute=["selective", "full"])
def test_recomputation_by_kinds_of_operators_trains_the_same(
    name: str, schedule: str, recompute: str
) -> None:
    """To rounding: gradients of what several parts read are added in another order."""
    case = {"dropped": DROPPED, "drawing": DRAWING}.get(name) or CASES[name]
    order = SCHEDULES[schedule]
    graph = captured_for(case, order)
    once, twice = (
        compiled(graph, cut(graph, [0.5]), 2, each) for each in (order, recomputing(order, recompute))
    )
    assert recomputed(twice)
    assert_same(local(twice, case, batches_of(case)), local(once, case, batches_of(case)), 1e-12)


@covering(case=[DROPPED, DRAWING], schedule=SCHEDULES)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_random_operators_draw_the_same_numbers_again(schedule: str, case: Case, data: st.DataObject) -> None:
    order = SCHEDULES[schedule]
    graph = captured_for(case, order)
    placed = scattered(data, graph, 3)
    once, twice = (compiled(graph, placed, 3, each) for each in (order, recomputing(order)))
    assert_same_bits(local(twice, case, batches_of(case)), local(once, case, batches_of(case)))
