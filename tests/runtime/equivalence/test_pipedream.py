"""The asynchronous schedule trains what its papers say, on the weights that they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import ConfigError
from netsplit.program import Program
from netsplit.program.instructions import Forward
from netsplit.program.schedules import AsyncOneFOneB
from tests.cover import covering
from tests.nets import CASES, SGD, STAGES, Case
from tests.runtime.equivalence.running import (
    PATIENT,
    assert_same,
    by_stage,
    captured_for,
    compiled,
    local,
    on_workers,
    parameters_of,
    scattered,
)
from tests.runtime.references import Batch, double_loop, paper_version, pipedream_loop
from tests.workers import Pools

WHERE = {
    1: ["cpu:0"] * 4,
    2: ["cpu:0", "cpu:0", "cpu:1", "cpu:1"],
    3: ["cpu:0", "cpu:1", "cpu:1", "cpu:2"],
    4: ["cpu:0", "cpu:1", "cpu:2", "cpu:3"],
}
"""Devices of the four pieces of the case "stages"; those on one device are one stage of the pipeline."""
OPTIONS = {
    "plain": AsyncOneFOneB(8),
    "recompute": AsyncOneFOneB(8, recompute=True),
    "delayed": AsyncOneFOneB(8, delay_weights=True),
    "both": AsyncOneFOneB(8, recompute=True, delay_weights=True),
}
ONE_USE = [name for name in CASES if name not in ("tied", "shared_norm")]
"""Cases whose parameters are each read by one operator, so by one segment, so in one version."""
MICROBATCHES = 6
SAMPLES = 2 * MICROBATCHES
"""Micro-batches of drawn placements: more than the versions that three devices have in flight."""


def batches_of(case: Case, samples: int = 16) -> list[Batch]:
    return [case.another(seed, samples) for seed in range(2)]


def staged(devices: int, schedule: AsyncOneFOneB, batch: int = 16) -> Program:
    graph = captured_for(STAGES, schedule, batch)
    return compiled(graph, by_stage(graph, WHERE[devices]), devices, schedule)


def versions(program: Program) -> dict[tuple[str, int], int]:
    """(parameter, micro-batch) -> the version that its one segment uses."""
    used = {}
    for instructions in program.instructions.values():
        for ins in instructions:
            if isinstance(ins, Forward):
                for name in program.segments[ins.segment].nodes:
                    for k in program.graph.nodes[name].initializers:
                        used[k, ins.microbatch] = ins.version
    return used


@pytest.mark.parametrize("devices", WHERE)
@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_every_forward_uses_the_version_of_the_paper(devices: int, microbatches: int) -> None:
    program = staged(devices, AsyncOneFOneB(microbatches), 2 * microbatches)
    by_version = versions(program)
    for piece, home in enumerate(WHERE[devices]):
        stage = int(home[-1])
        names = [k for k in program.graph.initializers if k.startswith(f"{piece}.")]
        assert names
        for k in names:
            used = [by_version[k, i] for i in range(microbatches)]
            assert used == [paper_version(i, stage, devices) for i in range(microbatches)]


@covering(name=ONE_USE, options=OPTIONS)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_any_placement_trains_on_the_versions_its_program_names(
    name: str, options: str, data: st.DataObject
) -> None:
    case = CASES[name]
    every = data.draw(st.sampled_from([1, 2, 3]), label="update_every")
    schedule = replace(OPTIONS[options], update_every=every, microbatches=MICROBATCHES)
    graph = captured_for(case, schedule, SAMPLES)
    devices = data.draw(st.sampled_from([2, 3]), label="devices")
    program = compiled(graph, scattered(data, graph, devices), devices, schedule)
    used = versions(program)
    reference = pipedream_loop(
        case.fresh(), case.loss, batches_of(case, SAMPLES), 2, SGD,
        lambda k, i: used.get((k, i), 0), lambda _: every,
    )  # fmt: skip
    assert_same(local(program, case, batches_of(case, SAMPLES)), reference)


@covering(name=CASES, options=OPTIONS)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_two_versions_on_any_placement_are_the_papers(name: str, options: str, data: st.DataObject) -> None:
    case = CASES[name]
    every = data.draw(st.sampled_from([1, 2, 3, MICROBATCHES]), label="update_every")
    schedule = replace(OPTIONS[options], weights="double", update_every=every, microbatches=MICROBATCHES)
    graph = captured_for(case, schedule, SAMPLES)
    devices = data.draw(st.sampled_from([2, 3]), label="devices")
    program = compiled(graph, scattered(data, graph, devices), devices, schedule)
    reference = double_loop(case.fresh(), case.loss, batches_of(case, SAMPLES), 2, SGD, every)
    assert_same(local(program, case, batches_of(case, SAMPLES)), reference)


def test_two_versions_on_worker_processes_are_the_papers(pools: Pools) -> None:
    workers, schedule = 3, AsyncOneFOneB(8, update_every=2, weights="double")
    trained = on_workers(staged(workers, schedule), STAGES, batches_of(STAGES), pools(workers))
    reference = double_loop(STAGES.fresh(), STAGES.loss, batches_of(STAGES), 2, SGD, 2)
    assert_same(trained, reference)


@pytest.mark.parametrize("options", ["plain", "both"])
def test_a_replicated_stage_steps_on_its_replicas_mean_gradient(options: str) -> None:
    """Two replicas in front: they step after every two micro-batches, the stage behind after each."""
    schedule = OPTIONS[options]
    graph = captured_for(STAGES, schedule, 16)
    device_of = by_stage(graph, ["cpu:0", "cpu:0", "cpu:2", "cpu:2"])
    program = compiled(graph, device_of, 3, schedule, replicas={"cpu:0": ("cpu:0", "cpu:1")})
    used = versions(program)
    assert [used["0.0.weight", i] for i in range(8)] == sorted(used["0.0.weight", i] for i in range(8))
    reference = pipedream_loop(
        STAGES.fresh(), STAGES.loss, batches_of(STAGES), 2, SGD,
        lambda k, i: used[k, i], lambda k: 2 if k[0] in "01" else 1,
    )  # fmt: skip
    trained = local(program, STAGES, batches_of(STAGES))
    assert_same(parameters_of(STAGES, trained), parameters_of(STAGES, reference))


def test_what_needs_all_gradients_at_once_is_refused() -> None:
    schedule = AsyncOneFOneB(4)
    graph = captured_for(STAGES, schedule)
    with pytest.raises(ConfigError, match="every device steps on its own"):
        compiled(graph, by_stage(graph, WHERE[2]), 2, schedule, shared_norm=True)
