"""Replicas that take unlike numbers of micro-batches train what one device trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import ConfigError
from netsplit.graph import initial_values
from netsplit.program import GPipe, Program, Schedule
from netsplit.program.instructions import Forward
from netsplit.program.other_batches import with_tail
from netsplit.program.schedules import ZBH1, AsyncOneFOneB, Interleaved, OneFOneB
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import UpdateRule
from tests.builders import cpus
from tests.cover import covering
from tests.nets import CASES, SGD, STAGES
from tests.runtime.equivalence.running import (
    PATIENT,
    Placed,
    assert_same,
    batches_of,
    by_stage,
    captured,
    captured_for,
    chain_of,
    compiled,
    local,
    parameters_of,
    scattered,
)
from tests.runtime.references import Trained, plain_loop, replicated_loop

SCHEDULES: dict[str, Schedule] = {
    "gpipe": GPipe(4),
    "gpipe+recompute": GPipe(4, recompute=True),
    "1f1b+delayed": OneFOneB(4, delay_weights=True),
    "interleaved_1f1b": Interleaved(4),
    "zb_h1": ZBH1(4),
}
TWO = {"cpu:0": ("cpu:0", "cpu:2")}
"""Replicas of a placement on cpu:0 and cpu:1."""
Named = Mapping[str, tuple[str, ...]]


def turns_of(data: st.DataObject, replicas: Named) -> dict[str, tuple[str, ...]]:
    """Drawn: every replica has a turn within the first four."""
    drawn = {}
    for first, each in replicas.items():
        more = data.draw(st.lists(st.sampled_from(each), max_size=4 - len(each)))
        drawn[first] = tuple(data.draw(st.permutations([*each, *more]), label=f"turns of {first}"))
    return drawn


def taken(program: Program, device: str) -> list[int]:
    """Micro-batches that a device computes."""
    each = program.instructions[device]
    return sorted({ins.microbatch for ins in each if isinstance(ins, Forward)})


def resized(name: str, placed: Placed, schedule: Schedule, samples: int, **options: Named) -> Program:
    full, rest = divmod(samples, 2)
    graph = captured(name, 2)
    program = compiled(graph, placed, 5, schedule.with_microbatches(full + bool(rest)), **options)
    return with_tail(program, graph, captured(name, rest)) if rest else program


@covering(name=["cells", "tied", "two_heads", "fan", "attention"], schedule=SCHEDULES)
@settings(PATIENT, max_examples=2)
@given(data=st.data())
def test_any_turns_train_what_the_plain_loop_trains(name: str, schedule: str, data: st.DataObject) -> None:
    """One of the last batches has fewer micro-batches than turns, and a tail; gradients of two add up."""
    case, order = CASES[name], SCHEDULES[schedule]
    graph = captured(name, 2)
    placed = scattered(data, graph, 2)
    replicas = data.draw(
        st.sampled_from([TWO, {"cpu:0": ("cpu:0", "cpu:2", "cpu:4"), "cpu:1": ("cpu:1", "cpu:3")}]),
        label="replicas",
    )
    turns = turns_of(data, replicas)
    clip_norm = data.draw(st.sampled_from([None, 0.3]), label="clip_norm")
    program = compiled(
        graph, placed, 5, order, replicas=replicas, turns=turns, shared_norm=clip_norm is not None
    )
    runtime = LocalRuntime(program, cpus(5), initial_values(case.fresh(), graph), SGD, UpdateRule(clip_norm))
    sizes = (8, 8, 8, 3)
    batches = [case.another(seed, count) for seed, count in enumerate(sizes)]
    options = {"replicas": replicas, "turns": turns, "shared_norm": clip_norm is not None}
    losses = [
        runtime.train_batch(
            *batch,
            fraction=size / sum(sizes[n - n % 2 : n - n % 2 + 2]),
            step=n % 2 == 1,
            program=None if size == 8 else resized(name, placed, order, size, **options),  # type: ignore[arg-type]
        )
        for n, (batch, size) in enumerate(zip(batches, sizes, strict=True))
    ]
    wanted = plain_loop(case.fresh(), case.loss, batches, 2, SGD, group=2, clip_norm=clip_norm)
    trained = Trained(losses, runtime.state())
    assert_same(parameters_of(case, trained), parameters_of(case, wanted))


def shaped(schedule: Schedule, turns: Sequence[int], **options: bool) -> Program:
    """Two replicas of three stages, then one device."""
    graph = captured_for(STAGES, schedule)
    each = ("cpu:0", "cpu:1")
    return compiled(
        graph, by_stage(graph, ["cpu:0", "cpu:0", "cpu:0", "cpu:2"]), 3, schedule,
        replicas={"cpu:0": each}, turns={"cpu:0": tuple(each[place] for place in turns)}, **options,
    )  # fmt: skip


def wanted_of(turns: Sequence[int], clip_norm: float | None = None) -> Trained:
    """Plain data parallelism with such turns, running statistics included."""
    return replicated_loop(
        chain_of(STAGES), [2, 2, 2, 1], STAGES.loss, batches_of(STAGES), 2, SGD,
        clip_norm=clip_norm, turns={2: turns},
    )  # fmt: skip


@covering(turns=[(1, 0, 1), (0, 1, 1, 1), (0, 0, 1)], schedule=SCHEDULES)
def test_uneven_replicas_train_as_data_parallel_ones(turns: tuple[int, ...], schedule: str) -> None:
    program = shaped(SCHEDULES[schedule], turns)
    for place, name in enumerate(("cpu:0", "cpu:1")):
        assert taken(program, name) == [i for i in range(4) if turns[i % len(turns)] == place]
    assert_same(local(program, STAGES, batches_of(STAGES)), wanted_of(turns))


def test_devices_that_step_within_a_batch_take_even_turns() -> None:
    """Those of every round in any order; else a replica could step before another has begun."""
    with pytest.raises(ConfigError, match=r"uneven turns.*pipedream"):
        shaped(AsyncOneFOneB(4), (0, 1, 1))
    ordered, crossed = (
        local(shaped(AsyncOneFOneB(4), turns), STAGES, batches_of(STAGES)) for turns in ((0, 1), (0, 1, 1, 0))
    )
    assert_same(parameters_of(STAGES, ordered), parameters_of(STAGES, crossed))
