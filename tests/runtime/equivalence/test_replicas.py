"""Replicated stages and plain data parallelism train what one device trains."""

from __future__ import annotations

from functools import cache

import pytest

from netsplit.program import GPipe, Program, Schedule
from netsplit.program.schedules import ZBH1, Interleaved, OneFOneB
from netsplit.runtime.share import UpdateRule
from tests.cover import covering
from tests.nets import SGD, STAGES
from tests.runtime.equivalence.running import (
    assert_same,
    batches_of,
    by_stage,
    captured_for,
    chain_of,
    compiled,
    local,
    on_workers,
)
from tests.runtime.references import Trained, replicated_loop
from tests.workers import Pools

SCHEDULES: dict[str, Schedule] = {
    "gpipe": GPipe(4),
    "1f1b": OneFOneB(4),
    "1f1b+recompute+delayed": OneFOneB(4, recompute=True, delay_weights=True),
    "interleaved_1f1b": Interleaved(4),
    "zb_h1": ZBH1(4),
}
SHAPES: dict[str, tuple[list[str], dict[str, tuple[str, ...]]]] = {
    "ddp": (["cpu:0"] * 4, {"cpu:0": ("cpu:0", "cpu:1")}),
    "ddp of four": (["cpu:1"] * 4, {"cpu:1": ("cpu:1", "cpu:3", "cpu:0", "cpu:2")}),
    "two, then one": (["cpu:0", "cpu:0", "cpu:2", "cpu:2"], {"cpu:0": ("cpu:0", "cpu:1")}),
    "one, then two": (["cpu:0", "cpu:0", "cpu:1", "cpu:1"], {"cpu:1": ("cpu:1", "cpu:2")}),
    "one, two, one": (["cpu:0", "cpu:1", "cpu:1", "cpu:3"], {"cpu:1": ("cpu:1", "cpu:2")}),
    "three over two": (
        ["cpu:0", "cpu:0", "cpu:3", "cpu:3"],
        {"cpu:0": ("cpu:0", "cpu:1", "cpu:2"), "cpu:3": ("cpu:3", "cpu:4")},
    ),
    "three over one": (["cpu:0", "cpu:0", "cpu:3", "cpu:3"], {"cpu:0": ("cpu:0", "cpu:1", "cpu:2")}),
    "two, visited twice": (["cpu:0", "cpu:2", "cpu:0", "cpu:2"], {"cpu:0": ("cpu:0", "cpu:1")}),
}
"""Devices of the four stages, and their replicas."""


def program_of(
    shape: str, schedule: Schedule, devices: int | None = None, shared_norm: bool = False
) -> Program:
    where, replicas = SHAPES[shape]
    graph = captured_for(STAGES, schedule)
    names = {*where, *(name for each in replicas.values() for name in each)}
    count = devices or max(int(name[-1]) for name in names) + 1
    return compiled(
        graph, by_stage(graph, where), count, schedule, replicas=replicas, shared_norm=shared_norm
    )


@cache
def data_parallel(shape: str, clip_norm: float | None = None) -> Trained:
    where, replicas = SHAPES[shape]
    counts = [len(replicas.get(home, (home,))) for home in where]
    return replicated_loop(
        chain_of(STAGES), counts, STAGES.loss, batches_of(STAGES), 2, SGD, clip_norm=clip_norm
    )


@covering(shape=SHAPES, schedule=SCHEDULES)
def test_replicated_stages_train_as_data_parallel_ones(shape: str, schedule: str) -> None:
    program = program_of(shape, SCHEDULES[schedule])
    assert_same(local(program, STAGES, batches_of(STAGES)), data_parallel(shape))


@pytest.mark.parametrize(
    ("shape", "workers"),
    [("two, then one", 3), ("ddp of four", 4)],
)
def test_replicated_stages_on_worker_processes(pools: Pools, shape: str, workers: int) -> None:
    for schedule in SCHEDULES.values():
        program = program_of(shape, schedule, workers)
        assert_same(on_workers(program, STAGES, batches_of(STAGES), pools(workers)), data_parallel(shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_norm_counts_a_replicated_parameter_once(shape: str) -> None:
    program = program_of(shape, OneFOneB(4), shared_norm=True)
    trained = local(program, STAGES, batches_of(STAGES), rule=UpdateRule(clip_norm=0.2))
    assert_same(trained, data_parallel(shape, clip_norm=0.2))
