"""Replicas whose states are in slices train what plain PyTorch trains."""

from __future__ import annotations

import random

from netsplit.graph.ir import Graph
from netsplit.partition.base import Shard
from netsplit.program import Program
from netsplit.program.instructions import Gather, Scatter
from tests.cover import covering, pairs, seed_of_run
from tests.nets import CASES, STAGES, Case
from tests.runtime.equivalence.running import (
    SCHEDULES,
    assert_same,
    batches_of,
    captured_for,
    compiled,
    cut,
    local,
    on_workers,
    parameters_of,
    plain,
)
from tests.workers import Pools, by_gloo

NETS = {name: case for name, case in {**CASES, "stages": STAGES}.items() if name != "assigned"}
LEVELS = ["optimizer", "gradients", "parameters"]


def sharded(
    graph: Graph,
    schedule: str,
    level: str,
    replicas: int,
    stages: int = 1,
    whole: bool = False,
    cuts: int = 3,
) -> Program:
    """Every stage on so many replicas, its states in slices; segments end at a few drawn nodes, too."""
    device_of = cut(graph, [n / stages for n in range(1, stages)])
    homes = sorted(set(device_of.values()))
    groups = {
        p: (p, *(f"cpu:{len(homes) + n * (replicas - 1) + j}" for j in range(replicas - 1)))
        for n, p in enumerate(homes)
    }
    ends = random.Random(seed_of_run()).sample(list(graph.nodes), cuts) if cuts else []
    shards = [Shard(each, level, whole) for each in groups.values()]  # type: ignore[arg-type]
    return compiled(
        graph,
        device_of,
        len(homes) * replicas,
        SCHEDULES[schedule],
        replicas=groups,
        cuts=ends,
        shards=shards,
    )


def same(case: Case, program: Program, schedule: str, **options: object) -> None:
    trained = local(program, case, batches_of(case), **options)  # type: ignore[arg-type]
    wanted = plain(case.name, SCHEDULES[schedule].microbatch_size(8))
    assert_same(parameters_of(case, trained), parameters_of(case, wanted))


@pairs(
    schedule=[k for k in SCHEDULES if k != "single_batch"],
    name=NETS,
    level=LEVELS,
    replicas=[2, 3, 4],
    stages=[1, 2],
    whole=[False, True],
)
def test_states_in_slices_train_what_plain_pytorch_trains(
    schedule: str, name: str, level: str, replicas: int, stages: int, whole: bool
) -> None:
    case = NETS[name]
    program = sharded(captured_for(case, SCHEDULES[schedule]), schedule, level, replicas, stages, whole)
    kinds = {type(ins) for each in program.instructions.values() for ins in each}
    assert {Gather, Scatter} <= kinds
    same(case, program, schedule)


@covering(name=["chain", "cells", "tied"], level=LEVELS, gloo=[False, True], workers=[2, 4])
def test_states_in_slices_on_worker_processes(
    pools: Pools, name: str, level: str, gloo: bool, workers: int
) -> None:
    case = CASES[name]
    program = sharded(captured_for(case, SCHEDULES["gpipe"]), "gpipe", level, workers)
    if gloo:
        with by_gloo(pools(workers)) as pool:
            trained = on_workers(program, case, batches_of(case), pool)
    else:
        trained = on_workers(program, case, batches_of(case), pools(workers))
    wanted = plain(name, SCHEDULES["gpipe"].microbatch_size(8))
    assert_same(parameters_of(case, trained), parameters_of(case, wanted))
