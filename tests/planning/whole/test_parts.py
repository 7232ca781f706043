"""What a search for a whole plan is made of: counts, groups of devices, cuts, and bounds."""

import math
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsplit.errors import ConfigError
from netsplit.planning.whole.auto_schedule import AutoSchedule, microbatch_counts
from netsplit.planning.whole.stages import NodeLine, StageCosts, stages_of_line
from netsplit.program.schedules import SCHEDULES
from tests.planning.whole.test_search import problem_of


@given(st.integers(1, 512), st.integers(1, 64))
def test_a_batch_can_be_cut_into_each_number_of_micro_batches(samples: int, devices: int) -> None:
    counts = microbatch_counts(samples, devices)
    assert counts[0] == 1
    assert list(counts) == sorted(set(counts))
    assert len(counts) <= 8
    assert all(-(-samples // -(-samples // m)) == m for m in counts)


def test_all_schedules_that_are_open_train_what_one_device_trains() -> None:
    names = {schedule.name for m in (1, 4) for schedule in AutoSchedule().orders(m)}
    assert {"gpipe", "1f1b", "zb_h1", "single_batch"} <= names
    assert all(SCHEDULES[name]().update_every is None for name in names)
    assert {schedule.microbatches for schedule in AutoSchedule().orders(4)} == {4}
    assert [each.name for each in AutoSchedule(schedules=["gpipe"]).orders(4)] == ["gpipe"]
    for counts in (None, [1, 4]):
        whole = AutoSchedule(microbatches=counts, schedules=["single_batch"])
        assert whole.counts(8, 4) == (1,)
        assert [each.name for each in whole.orders(1)] == ["single_batch"]
        with pytest.raises(ConfigError, match="does not cut batches"):
            whole.orders(4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"microbatches": 0}, "schedule.microbatches is 0"),
        ({"microbatches": [2, True]}, "schedule.microbatches is"),
        ({"microbatches": "4"}, "schedule.microbatches is '4'"),
        ({"microbatches": 4, "schedules": ["single_batch"]}, "only 'single_batch', which does not cut"),
        ({"schedules": "1f1b"}, "schedule.schedules is '1f1b'"),
        ({"schedules": ["gpip"]}, "'gpip'"),
        ({"replicas": "no"}, "schedule.replicas is 'no'"),
        ({"recompute": 1}, "schedule.recompute is 1"),
        ({"time_limit_s": 0}, "schedule.time_limit_s is 0"),
        ({"time_limit_s": math.nan}, "schedule.time_limit_s is nan"),
    ],
)
def test_what_cannot_be_left_open_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AutoSchedule(**options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_computes_as_much_of_its_forward_again_as_it_lacks_room_for() -> None:
    """More room is never slower; with none to spare a stage takes up to a whole forward more."""
    problem = problem_of("chain", 4, 2)
    line, groups = NodeLine.of(problem), ((0,), (1,))
    most = int(line.state_bytes[-1] + 4 * line.saved_bytes[-1])

    def period_s(capacity: int, recompute: bool = True) -> Any:
        devices = tuple(replace(each, capacity_bytes=capacity) for each in problem.cluster.devices)
        there = problem.moved_to(replace(problem.cluster, devices=devices), problem.costs)
        return StageCosts(there, line, 4, recompute).period_s(groups, 0)

    roomy = period_s(most)
    rooms = [period_s(int(part * most)) for part in np.linspace(0.0, 1.0, 21)]
    for tight, wider in pairwise(rooms):
        assert (wider <= tight).all()
    again = line.between("forward_s", 0)
    shares = []
    for each in rooms:
        fits = np.isfinite(each)
        shares.append((each[fits] - roomy[fits]) / again[fits])
    assert all(((share >= 0) & (share <= 1 + 1e-9)).all() for share in shares)
    assert any(((share > 0.05) & (share < 0.95)).any() for share in shares)
    kept = [period_s(int(part * most), recompute=False) for part in np.linspace(0.0, 1.0, 21)]
    assert all((np.isinf(each) | (each == roomy)).all() for each in kept)


class _Periods:
    """Seconds of every run as any stage, as numbers and nothing behind them."""

    def __init__(self, seconds: np.ndarray) -> None:
        self.seconds = seconds
        places = np.arange(seconds.shape[1])
        self.line = type("Line", (), {"places": places, "seconds": np.ones((len(places), seconds.shape[0]))})

    def period_s(self, groups: Any, g: int) -> np.ndarray:
        begins = np.arange(self.seconds.shape[1])
        return np.where(begins[:, None] < begins[None, :], self.seconds[g], np.inf)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(2, 7))
def test_the_cut_s_slowest_stage_is_as_fast_as_that_of_any_cut(seed: int, stages: int, atoms: int) -> None:
    generator = np.random.default_rng(seed)
    seconds = generator.random((stages, atoms + 1, atoms + 1))
    seconds[generator.random(seconds.shape) < 0.2] = np.inf  # does not fit
    groups = [(q,) for q in range(stages)]
    cut = stages_of_line(_Periods(seconds), groups)  # type: ignore[arg-type]
    every = [(0, *inner, atoms) for inner in combinations(range(1, atoms), stages - 1)]
    best = min(
        (max(seconds[g, b, c] for g, (b, c) in enumerate(pairwise(ends))) for ends in every), default=np.inf
    )
    if not np.isfinite(best):
        assert cut is None
        return
    assert cut is not None
    assert max(seconds[g, b, c] for g, (b, c) in enumerate(cut.runs)) == best
    assert [cut.runs[0][0], *(c for _, c in cut.runs)] in [list(ends) for ends in every]
