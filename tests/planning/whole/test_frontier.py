"""The table of what a plan was chosen from: no plan twice, and reasons that say something."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import assume, given
from hypothesis import strategies as st

from netsplit.partition.base import Placement, SolverReport
from netsplit.planning.whole.frontier import FrontierRow, frontier_of, frontier_table
from netsplit.planning.whole.judge import Judge, Tried
from netsplit.planning.whole.notes import notes_of
from netsplit.program.schedules import SCHEDULES, GPipe, OneFOneB, Schedule, SingleBatch
from tests.planning.whole.test_whole_plan import _problem

GPIPE = GPipe(4)


def tried(schedule: Schedule = GPIPE, milliseconds: float = 10.0, **fields: object) -> Tried:
    placement = Placement("cut", {"a": "d0", "b": "d1"}, {"a": 0, "b": 1}, SolverReport("heuristic", 0.0))
    usual = Tried(
        "pipeline", "2 stages", schedule, placement, 1e-3 * milliseconds, {"d0": 100, "d1": 90}, 0, "d0",
        "d0", 1e-3 * milliseconds / 2, 0.0, 0.0,
    )  # fmt: skip
    return replace(usual, **fields)  # type: ignore[arg-type]


def rows(winner: Tried, *others: Tried) -> tuple[FrontierRow, ...]:
    return frontier_of(cast(Judge, SimpleNamespace(tried=[winner, *others])), winner, 64)


def test_one_micro_batch_of_a_placement_is_one_row_whatever_its_schedule_is_called() -> None:
    best = tried(GPipe(4), origin="3 stages")
    whole = [tried(SingleBatch(), 12.0), tried(GPipe(1), 12.5), tried(OneFOneB(1), 12.5)]
    assert [row.schedule for row in rows(best, *whole)] == ["gpipe", "single_batch"]
    assert [row.schedule for row in rows(whole[0], *whole[1:])] == ["single_batch"]


@given(st.floats(1e-3, 1e4), st.floats(1.0, 2.0) | st.floats(1.0, 1e4))
def test_a_difference_that_does_not_show_is_not_told_as_one(milliseconds: float, times: float) -> None:
    winner = tried(GPipe(4), milliseconds)
    other = tried(GPipe(4), times * milliseconds, origin="3 stages", compute_s=winner.compute_s)
    why = rows(winner, other)[1].why_not
    assume(abs(times - 1.001) > 1e-9)
    assert " 0.0 " not in why
    assert " 0 " not in why
    assume(abs(times - 2.0) > 1e-9)
    assert ("% longer" in why) == (1.001 < times < 2.0)
    assert (f"takes {times:,.1f} times as long: " in why) == (times > 2.0)
    assert ("as fast within 0.1 %" in why) == (times <= 1.001)


def test_the_table_has_room_on_a_hundred_columns_and_reasons_below_rows() -> None:
    longest = SCHEDULES[max(SCHEDULES, key=len)]().with_microbatches(512)
    again = replace(tried().placement, recomputed=frozenset("a"))
    wide: dict[str, Any] = {"origin": "8 stages x 4 replicas", "peak_bytes": {"d0": 79 * 2**30}}
    winner = tried(kind="data parallel", **wide)
    other = tried(longest, 1e3, placement=again, compute_s=1e-2, **wide)
    missing = tried(GPipe(2), 12.0, kind="single", missing_bytes=3 * 2**30, placement=again)
    lines = frontier_table(rows(winner, other, missing)).lines()
    assert max(map(len, lines)) <= 100
    assert lines[1].strip() == "why not"
    assert lines[3] == "    chosen"
    assert lines[5] == "    does not fit: d0 lacks 3072 MiB; recomputes"
    assert lines[7].startswith("    takes 100.0 times as long: d0 ")
    assert lines[7].endswith("; recomputes")


def test_contention_that_could_not_be_told_is_remarked_on_where_it_may_matter() -> None:
    problem = _problem(2)
    kind = problem.cluster.devices[0].kind
    devices = tuple(replace(device, host="here") for device in problem.cluster.devices)
    costs = problem.costs.with_device(kind, unsure=True)
    unsure = replace(problem, cluster=replace(problem.cluster, devices=devices), costs=costs)
    nodes = list(problem.graph.nodes)
    alone = dict.fromkeys(nodes, devices[0].name)
    both = alone | dict.fromkeys(nodes[len(nodes) // 2 :], devices[1].name)
    one, two = (
        Placement("drawn", where, problem.graph.position, SolverReport("heuristic", 0.0))
        for where in (alone, both)
    )
    assert any("is uncertain and assumed as 0 %" in note for note in notes_of(unsure, two))
    assert notes_of(unsure, one) == notes_of(problem, one) == notes_of(problem, two)
