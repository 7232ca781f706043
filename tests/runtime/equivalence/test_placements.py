"""Any placement under any schedule trains what plain PyTorch trains (DESIGN.md, invariant 1)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.program import Schedule
from tests.nets import CASES
from tests.runtime.equivalence.running import (
    PATIENT,
    SCHEDULES,
    assert_same,
    batches_of,
    captured_for,
    compiled,
    cut,
    local,
    on_workers,
    plain,
    scattered,
)
from tests.workers import Pools, by_gloo


def check_locally(name: str, schedule: Schedule, data: st.DataObject) -> None:
    case = CASES[name]
    graph = captured_for(case, schedule)
    devices = data.draw(st.sampled_from([3, 4]), label="devices")
    program = compiled(graph, scattered(data, graph, devices), devices, schedule)
    assert_same(local(program, case, batches_of(case)), plain(name, schedule.microbatch_size(8)))


def check_on_workers(name: str, schedule: Schedule, workers: int, pools: Pools, data: st.DataObject) -> None:
    case = CASES[name]
    graph = captured_for(case, schedule)
    program = compiled(graph, scattered(data, graph, workers), workers, schedule)
    trained = on_workers(program, case, batches_of(case), pools(workers))
    assert_same(trained, plain(name, schedule.microbatch_size(8)))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CASES)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_any_placement_in_one_process(name: str, schedule: str, data: st.DataObject) -> None:
    check_locally(name, SCHEDULES[schedule], data)


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_any_placement_on_worker_processes(
    pools: Pools, schedule: str, workers: int, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(CASES)), label="case")
    check_on_workers(name, SCHEDULES[schedule], workers, pools, data)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_scattered_nodes_on_workers_that_gloo_joins(pools: Pools, schedule: str) -> None:
    case, order = CASES["cells"], SCHEDULES[schedule]
    graph = captured_for(case, order)
    places = [i / 10 for i in range(1, 10)]
    homes = {node: f"cpu:{int(name[-1]) % 2}" for node, name in cut(graph, places).items()}
    program = compiled(graph, homes, 2, order)
    with by_gloo(pools(2)) as pool:
        trained = on_workers(program, case, batches_of(case), pool)
    assert_same(trained, plain("cells", order.microbatch_size(8)))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CASES)
@settings(PATIENT, max_examples=30)
@given(data=st.data())
def test_many_placements_in_one_process(name: str, schedule: str, data: st.DataObject) -> None:
    check_locally(name, SCHEDULES[schedule], data)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CASES)
@settings(PATIENT, max_examples=3)
@given(data=st.data())
def test_many_placements_on_worker_processes(
    pools: Pools, name: str, schedule: str, workers: int, data: st.DataObject
) -> None:
    check_on_workers(name, SCHEDULES[schedule], workers, pools, data)
