"""Any placement under any schedule trains what plain PyTorch trains (DESIGN.md, invariant 1)."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.graph import initial_values
from netsplit.program import GPipe
from netsplit.runtime.local import LocalRuntime
from tests.builders import cpus
from tests.cover import covering, few, pairs, seed_of_run
from tests.nets import CASES, SGD, STAGES, random_placement
from tests.runtime.equivalence.running import (
    PATIENT,
    SCHEDULES,
    Placed,
    assert_same,
    batches_of,
    captured_for,
    compiled,
    cut,
    local,
    on_workers,
    parameters_of,
    plain,
    scattered,
)
from tests.workers import Pools, by_gloo

NETS = {**CASES, "stages": STAGES}
WHERE: dict[str, list[float]] = {"one device": [], "two parts": [0.5], "three parts": [0.2, 0.7]}
"""Where the graph's order is cut."""


def copies_of(which: str, used: Iterable[str], count: int) -> dict[str, tuple[str, ...]]:
    """Replicas on devices that have nothing else to do, after the first `count`."""
    first, *others = sorted(used)
    if which == "of the first":
        return {first: (first, f"cpu:{count}")}
    return {first: (first, f"cpu:{count}", f"cpu:{count + 1}")} | {
        name: (name, f"cpu:{count + 2 + n}") for n, name in enumerate(others)
    }


@pairs(schedule=SCHEDULES, name=NETS, where=[*WHERE, "anywhere"], replicas=["none", "of the first", "of all"])
def test_any_plan_trains_what_plain_pytorch_trains(
    name: str, schedule: str, where: str, replicas: str
) -> None:
    """Bit for bit where no gradient is a sum over devices; else equal but for the order of sums.

    Every replica has buffers of its own, so then parameters are compared; one net, which computes
    with its buffers, has none.
    """
    case, order = NETS[name], SCHEDULES[schedule]
    graph = captured_for(case, order)
    if where == "anywhere":
        placed: Placed = random_placement(random.Random(seed_of_run()), graph, 3)
    else:
        placed = (cut(graph, WHERE[where]), graph.position)
    copied = replicas != "none" and name != "assigned"
    options = {"replicas": copies_of(replicas, set(placed[0].values()), 3)} if copied else {}
    program = compiled(graph, placed, 8 if copied else 3, order, **options)
    trained, wanted = local(program, case, batches_of(case)), plain(name, order.microbatch_size(8))
    if copied:
        assert_same(parameters_of(case, trained), parameters_of(case, wanted))
    elif where == "one device" or (where != "anywhere" and name == "chain"):
        assert_same(trained, wanted)
        assert trained.losses == wanted.losses
        for key in trained.state.keys() & wanted.state.keys():  # of tied parameters it has one name
            assert torch.equal(trained.state[key], wanted.state[key]), key
    else:
        assert_same(trained, wanted)


@covering(name=CASES, schedule=few(list(SCHEDULES), 9), workers=[2, 3, 4], gloo=[False, True])
def test_any_plan_on_worker_processes(
    pools: Pools, name: str, schedule: str, workers: int, gloo: bool
) -> None:
    """Joined by memory that they have in common, or by gloo, as between hosts."""
    case, order = CASES[name], SCHEDULES[schedule]
    graph = captured_for(case, order)
    placed = random_placement(random.Random(seed_of_run()), graph, workers)
    program = compiled(graph, placed, workers, order)
    if gloo:
        with by_gloo(pools(workers)) as pool:
            trained = on_workers(program, case, batches_of(case), pool)
    else:
        trained = on_workers(program, case, batches_of(case), pools(workers))
    assert_same(trained, plain(name, order.microbatch_size(8)))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CASES)
@settings(PATIENT, max_examples=30)
@given(data=st.data())
def test_many_placements(name: str, schedule: str, data: st.DataObject) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    graph = captured_for(case, order)
    devices = data.draw(st.sampled_from([3, 4]), label="devices")
    program = compiled(graph, scattered(data, graph, devices), devices, order)
    assert_same(local(program, case, batches_of(case)), plain(name, order.microbatch_size(8)))


def test_a_device_holds_only_its_own_parameters() -> None:
    case, order = CASES["chain"], GPipe(4)
    graph = captured_for(case, order)
    program = compiled(graph, cut(graph, [0.5]), 2, order)
    runtime = LocalRuntime(program, cpus(2), initial_values(case.fresh(), graph), SGD)
    held = [set(share.tensors) for share in runtime.shares.values()]
    assert held[0]
    assert held[1]
    assert not held[0] & held[1]
    assert held[0] | held[1] == set(graph.initializers)
