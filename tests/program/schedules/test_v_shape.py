"""`zb_v`, `v_half`, `v_min` and `dualpipe_v`: on a V what was published, elsewhere within the same memory."""

from __future__ import annotations

from collections import Counter

import pytest
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    ScheduleDualPipeV,
    ScheduleZBVZeroBubble,
)

from netsplit.errors import ConfigError
from netsplit.program.schedules import SCHEDULES, ZBV, Compute, DualPipeV, Pipeline, Schedule, VHalf, VMin
from netsplit.program.schedules.base import TaskTimes, begin_all, by_device
from netsplit.program.schedules.order import EQUAL
from tests.program.schedules.test_schedules import chain

IN_V = (ZBV, VHalf, VMin, DualPipeV)
PHASE = {
    "FORWARD": "forward",
    "FULL_BACKWARD": "backward",
    "BACKWARD_INPUT": "input",
    "BACKWARD_WEIGHT": "weight",
}


def vee(devices: int) -> Pipeline:
    return chain(2 * devices, [*range(devices), *reversed(range(devices))])


def most_kept(pipeline: Pipeline, order: list[Compute]) -> int:
    """Most (segment, micro-batch) pairs between forward and weight gradient, of the fullest device."""
    now: Counter[str] = Counter()
    most = 0
    for phase, s, i in order:
        if s in pipeline.trained:
            now[pipeline.on(s, i)] += (phase == "forward") - (phase in ("weight", "backward"))
        most = max(most, *now.values())
    return most


def bubble(pipeline: Pipeline, order: list[Compute], microbatches: int) -> float:
    """Units beyond those that a device of two segments computes, all phases one unit long."""
    begun = begin_all(pipeline, by_device(pipeline, order), TaskTimes.in_units(pipeline, EQUAL))
    assert begun is not None
    return begun.makespan - 6 * microbatches


def torchs(kind: type[PipelineScheduleMulti], devices: int, microbatches: int) -> list[list[Compute]]:
    schedule = kind.__new__(kind)
    schedule.pp_group_size, schedule._n_microbatches = devices, microbatches
    schedule._num_stages = schedule.num_stages = 2 * devices
    lists = []
    for rank in range(devices):
        actions = schedule._calculate_single_rank_operations(rank)  # type: ignore[attr-defined]
        plain = [part for each in actions if each is not None for part in each.sub_actions or (each,)]
        lists.append(
            [(PHASE[each.computation_type.name], each.stage_index, each.microbatch_index) for each in plain]
        )
    return lists  # type: ignore[return-value]


@pytest.mark.parametrize(("ours", "theirs"), [(ZBV, ScheduleZBVZeroBubble), (DualPipeV, ScheduleDualPipeV)])
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 5, 8])
def test_every_device_s_order_on_a_v_is_torch_s(
    ours: type[Schedule], theirs: type[PipelineScheduleMulti], devices: int
) -> None:
    pipeline = vee(devices)
    for m in (2 * devices, 2 * devices + 1, 4 * devices):
        lists = by_device(pipeline, ours(m).order(pipeline))  # type: ignore[call-arg]
        assert list(lists.values()) == torchs(theirs, devices, m)


@pytest.mark.parametrize("devices", [2, 3, 4, 6, 8, 9])
def test_bubbles_and_memory_on_a_v_are_the_published_ones(devices: int) -> None:
    """1F1B's bubble is 6 (p - 1) units, its memory 2p pairs."""
    p, pipeline = devices, vee(devices)
    for m in (2 * p, 4 * p):
        orders = {kind: kind(m).order(pipeline) for kind in IN_V}
        spent = {kind: bubble(pipeline, order, m) for kind, order in orders.items()}
        kept = {kind: most_kept(pipeline, order) for kind, order in orders.items()}
        assert spent[ZBV] == spent[DualPipeV] == p - 1
        assert spent[VHalf] <= 3 * (p - 1) + p % 2
        assert spent[VMin] <= 4 * (p - 1) + 1
        assert kept[ZBV] == 2 * p
        assert kept[DualPipeV] == 2 * p + 1
        assert kept[VHalf] <= p + 2
        assert kept[VMin] <= -(-2 * (p + 4) // 3)
        for kind in IN_V:
            assert kind(m).in_flight(p) == -(-kind(m).pairs(2 * p) // 2)


@pytest.mark.parametrize("kind", IN_V)
def test_weights_cannot_be_kept_with_their_backwards(kind: type[ZBV]) -> None:
    assert SCHEDULES[kind.name] is kind
    with pytest.raises(ConfigError, match=rf"delay_weights is false.*{kind.name}.*1f1b"):
        kind(4, delay_weights=False)
