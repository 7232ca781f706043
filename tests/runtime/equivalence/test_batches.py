"""What a step sees: uneven batches, several batches, the gradients' norm over all devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import NetSplitError
from netsplit.graph import initial_values
from netsplit.graph.batches.batch import Batch
from netsplit.program import GPipe, Program, Schedule
from netsplit.program.other_batches import with_tail
from netsplit.program.schedules import ZBH1, AsyncOneFOneB, OneFOneB, SingleBatch
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import UpdateRule
from tests.builders import cpus
from tests.cover import covering, few
from tests.nets import CASES, SGD, STAGES, Case
from tests.runtime.equivalence.running import (
    PATIENT,
    Placed,
    assert_same,
    batches_of,
    captured,
    captured_for,
    compiled,
    cut,
    local,
    on_workers,
    plain,
    scattered,
)
from tests.runtime.references import Batch as Example
from tests.runtime.references import Trained, plain_loop
from tests.workers import Pools

SCHEDULES: dict[str, Schedule] = {
    "single_batch": SingleBatch(),
    "gpipe+recompute": GPipe(4, recompute=True),
    "1f1b": OneFOneB(4),
    "zb_h1": ZBH1(4),
}
ALONE = ("chain", "cells", "u_shape", "shared_norm")
"""BatchNorm wants more than one sample in every micro-batch; these are given an odd last one of two."""


def resized(placed: Placed, case: Case, schedule: Schedule, devices: int, samples: int, size: int) -> Program:
    """For `samples` samples in micro-batches of `size`, as `netsplit.session.session` makes it."""
    full, rest = divmod(samples, size)
    graph = captured(case.name, size)
    program = compiled(graph, placed, devices, schedule.with_microbatches(full + bool(rest)))
    return with_tail(program, graph, captured(case.name, rest)) if rest else program


def sizes_of(name: str, schedule: Schedule, batch_size: int) -> list[int]:
    """Numbers of samples up to a batch that leave a last micro-batch the model can be trained on."""
    size = schedule.microbatch_size(batch_size)
    least = 2 if name in ALONE else 1
    return [n for n in range(least, batch_size + 1) if n % size == 0 or n % size >= least]


@covering(name=[*CASES, "stages"], schedule=SCHEDULES)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_batches_of_any_size_count_by_their_samples(name: str, schedule: str, data: st.DataObject) -> None:
    case, order = CASES.get(name, STAGES), SCHEDULES[schedule]
    size = order.microbatch_size(12)
    graph = captured(case.name, size)
    devices = data.draw(st.sampled_from([2, 3]), label="devices")
    placed = scattered(data, graph, devices)
    possible = sizes_of("chain" if name == "stages" else name, order, 12)
    counts = data.draw(st.lists(st.sampled_from(possible), min_size=2, max_size=2), label="samples")
    program = compiled(graph, placed, devices, order)
    runtime = LocalRuntime(program, cpus(devices), initial_values(case.fresh(), graph), SGD)
    batches = [case.another(seed, count) for seed, count in enumerate(counts)]
    losses = [
        runtime.train_batch(*batch, program=resized(placed, case, order, devices, count, size))
        for batch, count in zip(batches, counts, strict=True)
    ]
    wanted = plain_loop(case.fresh(), case.loss, batches, size, SGD)
    assert_same(Trained(losses, runtime.state()), wanted)


@covering(name=few(["chain", "two_inputs", "two_heads", "tied"], 2), schedule=few(list(SCHEDULES), 2))
def test_uneven_batches_on_worker_processes(pools: Pools, name: str, schedule: str) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    size = order.microbatch_size(12)
    graph = captured(case.name, size)
    placed = (cut(graph, [0.3, 0.6]), graph.position)
    made: list[int] = []

    def resize(batch: Batch) -> Program:
        made.append(batch.samples)
        return resized(placed, case, order, 3, made[-1], size)

    runtime = DistributedRuntime(
        compiled(graph, placed, 3, order), pools(3), initial_values(case.fresh(), graph), SGD, resized=resize
    )
    batches = [case.another(seed, count) for seed, count in enumerate((12, 9, 8, 12, 2, 9))]
    losses = [runtime.train_batch(inputs, (targets,)) for inputs, targets in batches]
    assert made == [12, 9, 8, 2]
    assert_same(Trained(losses, runtime.state()), plain_loop(case.fresh(), case.loss, batches, size, SGD))


def accumulated(
    runtime: LocalRuntime | DistributedRuntime, batches: Sequence[Example], group: int
) -> Trained:
    losses = []
    for n, batch in enumerate(batches):
        losses.append(runtime.train_batch(*batch, fraction=1 / group, step=n % group == group - 1))
    return Trained(losses, runtime.state())


@covering(name=CASES, schedule=SCHEDULES)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_gradients_of_several_batches_make_one_step(name: str, schedule: str, data: st.DataObject) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    graph = captured_for(case, order)
    group = data.draw(st.sampled_from([2, 3]), label="batches a step")
    clip_norm = data.draw(st.sampled_from([None, 0.2]), label="clip_norm")
    program = compiled(graph, scattered(data, graph, 3), 3, order, shared_norm=clip_norm is not None)
    values = initial_values(case.fresh(), graph)
    runtime = LocalRuntime(program, cpus(3), values, SGD, UpdateRule(clip_norm))
    steps = 2 * group
    wanted = plain(name, order.microbatch_size(8), steps, group, clip_norm)
    assert_same(accumulated(runtime, batches_of(case, steps), group), wanted)


def test_batches_of_different_size_in_one_step_count_by_their_samples() -> None:
    case, order = CASES["fan"], GPipe(4)
    graph = captured(case.name, 3)
    placed = (cut(graph, [0.4]), graph.position)
    program = compiled(graph, placed, 2, order)
    runtime = LocalRuntime(program, cpus(2), initial_values(case.fresh(), graph), SGD)
    batches = [case.another(seed, count) for seed, count in enumerate((12, 7, 12, 4))]
    losses = [
        runtime.train_batch(
            *batch,
            fraction=len(batch[1]) / samples,
            step=n % 2 == 1,
            program=resized(placed, case, order, 2, len(batch[1]), 3),
        )
        for n, (batch, samples) in enumerate(zip(batches, (19, 19, 16, 16), strict=True))
    ]
    wanted = plain_loop(case.fresh(), case.loss, batches, 3, SGD, group=2)
    assert_same(Trained(losses, runtime.state()), wanted)


def test_accumulation_is_refused_where_devices_step_within_the_batch(pools: Pools) -> None:
    case, order = CASES["tied"], AsyncOneFOneB(4)
    graph = captured_for(case, order)
    program = compiled(graph, cut(graph, [0.5]), 2, order)
    runtime = DistributedRuntime(program, pools(2), initial_values(case.fresh(), graph), SGD)
    with pytest.raises(NetSplitError, match="cannot be accumulated"):
        runtime.train_batch(*case.batch(), step=False)


@covering(name=CASES, schedule=SCHEDULES)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_the_norm_is_of_all_devices_gradients(name: str, schedule: str, data: st.DataObject) -> None:
    """Counts the one gradient of tied parameters once; a norm per device would clip elsewhere."""
    case, order = CASES[name], SCHEDULES[schedule]
    graph = captured_for(case, order)
    clip_norm = data.draw(st.sampled_from([0.05, 0.5, 100.0]), label="clip_norm")
    devices = data.draw(st.sampled_from([2, 4]), label="devices")
    placed = scattered(data, graph, devices)
    program = compiled(graph, placed, devices, order, shared_norm=True)
    ours = local(program, case, batches_of(case), rule=UpdateRule(clip_norm))
    assert_same(ours, plain(name, order.microbatch_size(8), clip_norm=clip_norm))


def test_the_norm_on_worker_processes(pools: Pools) -> None:
    case, workers = CASES["tied"], 3
    for order in SCHEDULES.values():
        graph = captured_for(case, order)
        placed = cut(graph, [n / workers for n in range(1, workers)])
        program = compiled(graph, placed, workers, order, shared_norm=True)
        trained = on_workers(program, case, batches_of(case), pools(workers), rule=UpdateRule(0.1))
        assert_same(trained, plain("tied", order.microbatch_size(8), clip_norm=0.1))


def test_a_model_that_is_another_for_the_rest_of_a_batch_is_refused() -> None:
    order = GPipe(4)
    graph, tail = captured("fan", 3), captured("fan", 2)
    program = compiled(graph, cut(graph, [0.5]), 2, order)
    name = next(iter(tail.nodes))
    other = replace(tail, nodes={**tail.nodes, name: replace(tail.nodes[name], op="aten.neg.default")})
    with pytest.raises(NetSplitError, match="different operators for 2 and 3 samples"):
        with_tail(program, graph, other)
