"""The table of what a plan was chosen from: no plan twice, and reasons that say something."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from netsplit.placement.placement import Placement, SolverReport
from netsplit.planning.whole.frontier import FrontierRow, PlanChoice, frontier_of
from netsplit.planning.whole.judge import Judge, Tried
from netsplit.program.schedules import SCHEDULES, GPipe, OneFOneB, Schedule, SingleBatch

GPIPE = GPipe(4)


def tried(schedule: Schedule = GPIPE, milliseconds: float = 10.0, **fields: object) -> Tried:
    placement = Placement("cut", {"a": "d0", "b": "d1"}, {"a": 0, "b": 1}, SolverReport("heuristic", 0.0))
    usual = Tried(
        "pipeline", "2 stages", schedule, placement, 1e-3 * milliseconds, {"d0": 100, "d1": 90}, 0, "d0",
        "d0", 1e-3 * milliseconds / 2, 0.0, 0.0,
    )  # fmt: skip
    return replace(usual, **fields)  # type: ignore[arg-type]


def rows(winner: Tried, *others: Tried) -> tuple[FrontierRow, ...]:
    return frontier_of(
        cast(Judge, SimpleNamespace(tried=sorted([winner, *others], key=lambda each: each.rank))), winner, 64
    )


def test_one_micro_batch_of_a_placement_is_one_row_whatever_its_schedule_is_called() -> None:
    best = tried(GPipe(4), origin="3 stages")
    whole = [tried(SingleBatch(), 12.0), tried(GPipe(1), 12.5), tried(OneFOneB(1), 12.5)]
    assert [row.schedule for row in rows(best, *whole)] == ["gpipe", "single_batch"]
    assert [row.schedule for row in rows(whole[0], *whole[1:])] == ["single_batch"]


def test_the_table_has_room_on_a_hundred_columns_and_reasons_below_rows() -> None:
    longest = SCHEDULES[max(SCHEDULES, key=len)]().with_microbatches(512)
    again = replace(tried().placement, recomputed=frozenset("a"))
    wide: dict[str, Any] = {"origin": "8 stages x 4 replicas", "peak_bytes": {"d0": 79 * 2**30}}
    winner = tried(kind="data parallel", **wide)
    other = tried(longest, 1e3, placement=again, compute_s=1e-2, **wide)
    missing = tried(GPipe(2), 12.0, kind="single", missing_bytes=3 * 2**30, placement=again)
    lines = PlanChoice(rows(winner, other, missing)).table.lines()
    assert max(map(len, lines)) <= 100
    assert lines[1].strip() == "why not"
    assert lines[3] == "    chosen"
    assert lines[5] == "    does not fit: d0 lacks 3072 MiB, even with recomputed activations"
    assert lines[7].startswith("    takes 100.0 times as long: d0 ")
    assert lines[7].endswith("; recomputes")


def test_one_placement_of_several_methods_is_one_row() -> None:
    alone = Placement("m", {"a": "d0", "b": "d0"}, {"a": 0, "b": 1}, SolverReport("heuristic", 0.0))
    single = [
        tried(GPipe(1), 12.0, kind="single", origin=origin, placement=replace(alone, priority=order))
        for origin, order in (("one device", {"a": 0, "b": 1}), ("heft", {"a": 1, "b": 0}))
    ]
    assert [row.placement for row in rows(tried(), *single)] == ["2 stages", "one device"]
