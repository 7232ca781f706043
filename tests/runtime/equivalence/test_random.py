"""Random operators draw what the plain loop draws, wherever and in whatever order they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.graph import capture, capture_inference, draws, initial_values
from netsplit.program import GPipe, Program
from netsplit.program.other_batches import with_tail
from netsplit.program.schedules import ZBH1, Interleaved, OneFOneB
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.local import LocalRuntime
from tests.builders import cpus
from tests.cover import covering, few
from tests.nets import DRAWING, DROPPED, SGD, Case
from tests.runtime.equivalence.running import (
    PATIENT,
    SCHEDULES,
    Placed,
    assert_close,
    assert_same,
    batches_of,
    captured,
    captured_for,
    compiled,
    cut,
    local,
    on_workers,
    parameters_of,
    scattered,
)
from tests.runtime.references import Batch, Trained, plain_loop
from tests.workers import Pools

BOTH = {case.name: case for case in (DROPPED, DRAWING)}
SEED = 5
ON_WORKERS = {
    "gpipe+recompute": GPipe(4, recompute=True),
    "1f1b": OneFOneB(4),
    "interleaved_1f1b": Interleaved(4),
    "zb_h1+recompute": ZBH1(4, recompute=True),
}


def drawing(case: Case, size: int) -> Callable[[int, int], AbstractContextManager[object]]:
    graph = captured(case.name, size)
    return lambda n, i: draws(graph, SEED, n, i)


def plain(case: Case, batches: Sequence[Batch], size: int, group: int = 1) -> Trained:
    return plain_loop(case.fresh(), case.loss, batches, size, SGD, group=group, drawing=drawing(case, size))


@cache
def plain_of(name: str, size: int) -> Trained:
    case = BOTH[name]
    return plain(case, batches_of(case), size)


@covering(name=BOTH, schedule=SCHEDULES)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_any_placement_draws_what_the_plain_loop_draws(name: str, schedule: str, data: st.DataObject) -> None:
    case, order = BOTH[name], SCHEDULES[schedule]
    graph = captured_for(case, order)
    program = compiled(graph, scattered(data, graph, 3), 3, order)
    trained = local(program, case, batches_of(case), seed=SEED)
    assert_same(trained, plain_of(name, order.microbatch_size(8)))


@pytest.mark.parametrize("name", BOTH)
def test_on_one_device_it_is_the_plain_loop_bit_for_bit(name: str) -> None:
    case = BOTH[name]
    graph = captured_for(case, GPipe(4))
    program = compiled(graph, dict.fromkeys(graph.nodes, "cpu:0"), 1, GPipe(4))
    trained, wanted = (
        local(program, case, batches_of(case), seed=SEED),
        plain_of(name, 2),
    )
    assert trained.losses == wanted.losses
    assert all(torch.equal(tensor, wanted.state[key]) for key, tensor in trained.state.items())


@covering(name=BOTH, schedule=few(list(ON_WORKERS), 2))
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_worker_processes_draw_what_the_plain_loop_draws(
    pools: Pools, name: str, schedule: str, data: st.DataObject
) -> None:
    """What is sent to another process lies contiguous there, whatever it was."""
    case, order = BOTH[name], ON_WORKERS[schedule]
    graph = captured_for(case, order)
    program = compiled(graph, scattered(data, graph, 2), 2, order)
    trained = on_workers(program, case, batches_of(case), pools(2), seed=SEED)
    assert_same(trained, plain_of(name, 2))


@covering(name=BOTH, schedule=["gpipe", "1f1b+recompute", "interleaved_1f1b", "zb_h1"])
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_replicas_draw_what_the_plain_loop_draws(name: str, schedule: str, data: st.DataObject) -> None:
    case, order = BOTH[name], SCHEDULES[schedule]
    graph = captured_for(case, order)
    replicas = {"cpu:0": ("cpu:0", "cpu:2", "cpu:4"), "cpu:1": ("cpu:1", "cpu:3")}
    program = compiled(graph, scattered(data, graph, 2), 5, order, replicas=replicas)
    trained = local(program, case, batches_of(case), seed=SEED)
    assert_same(parameters_of(case, trained), parameters_of(case, plain_of(name, 2)))


def resized(case: Case, placed: Placed, samples: int) -> Program:
    full, rest = divmod(samples, 2)
    graph = captured(case.name, 2)
    program = compiled(graph, placed, 2, OneFOneB(full + bool(rest)))
    return with_tail(program, graph, captured(case.name, rest)) if rest else program


def test_uneven_batches_and_several_a_step_draw_what_the_plain_loop_draws() -> None:
    """Whole batches of eight, and one of five: its last micro-batch has one sample."""
    graph = captured(DRAWING.name, 2)
    placed = (cut(graph, [0.4]), graph.position)
    program, values = resized(DRAWING, placed, 8), initial_values(DRAWING.fresh(), graph)
    batches = [DRAWING.another(n, count) for n, count in enumerate((8, 5, 8, 5))]
    fractions, last = (8 / 13, 5 / 13) * 2, (False, True) * 2
    here = LocalRuntime(program, cpus(2), values, SGD, seed=SEED)
    losses = [
        here.train_batch(
            *batch, fraction=fraction, step=step, program=resized(DRAWING, placed, len(batch[1]))
        )
        for batch, fraction, step in zip(batches, fractions, last, strict=True)
    ]
    wanted = plain(DRAWING, batches, 2, group=2)
    assert_same(Trained(losses, here.state()), wanted)


class Uncertain(nn.Module):
    """Drops in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.head = nn.Linear(12, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(torch.tanh(self.inward(x)), 0.5, training=True))


def test_predictions_draw_by_keys_of_their_own(pools: Pools) -> None:
    torch.manual_seed(7)
    model = Uncertain().double()
    (inputs, targets), loss = DROPPED.batch(), nn.CrossEntropyLoss()
    micro = inputs[0][:2]
    graph, evaluated = capture(model, loss, (micro, targets[:2])), capture_inference(model, micro)
    order, values = GPipe(4), initial_values(model, graph)
    program = compiled(graph, cut(graph, [0.6]), 2, order)
    predict = compiled(evaluated, cut(evaluated, [0.6]), 2, order, training=False)
    runtime = DistributedRuntime(program, pools(2), values, SGD, seed=SEED)
    here = LocalRuntime(program, cpus(2), values, SGD, seed=SEED)
    seen = []
    for n in range(2):
        wanted = []
        for i, part in enumerate(inputs[0].split(2)):
            with draws(evaluated, SEED, n, i, phase="predict"), torch.no_grad():
                wanted.append(model.eval()(part))
        predictions = torch.cat([output for (output,) in runtime.predict(predict, inputs)])
        assert_close({"outputs": predictions}, {"outputs": torch.cat(wanted)})
        local_parts = here.predict(predict, inputs).values()
        assert_close({"outputs": torch.cat(list(local_parts))}, {"outputs": predictions})
        seen.append(predictions)
    assert not torch.allclose(*seen)
    assert runtime.draws.predictions == 2
    assert runtime.draws.batches == 0


def test_the_users_generator_is_left_as_it_was() -> None:
    graph = captured_for(DRAWING, GPipe(4))
    program = compiled(graph, cut(graph, [0.5]), 2, GPipe(4, recompute=True))
    runtime = LocalRuntime(program, cpus(2), initial_values(DRAWING.fresh(), graph), SGD)
    before = torch.get_rng_state()
    runtime.train_batch(*DRAWING.batch())
    with pytest.raises(Exception, match="samples"):
        runtime.train_batch(*DRAWING.batch(6))
    assert runtime.draws.batches == 1
    assert torch.equal(torch.get_rng_state(), before)
