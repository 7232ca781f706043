"""Trained across changes of placement between iterations: what the plain loop trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from netsplit.errors import NetSplitError
from netsplit.graph import initial_values
from netsplit.optim.learning_rate import LearningRate
from netsplit.optim.optimizers import OptimizerFactory, for_model
from netsplit.program import Program
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.share import UpdateRule
from netsplit.runtime.workers.pool import WorkerPool
from tests.cover import few
from tests.nets import CASES, SGD, STAGES, Case
from tests.runtime.equivalence.running import (
    PATIENT,
    SCHEDULES,
    assert_close,
    assert_same,
    batches_of,
    by_stage,
    captured_for,
    chain_of,
    compiled,
    cut,
    scattered,
)
from tests.runtime.equivalence.test_updates import GROUPED, RATES, SGD_OF
from tests.runtime.references import Trained, plain_loop, replicated_loop
from tests.workers import Pools

ON_WORKERS = ("single_batch", "gpipe", "1f1b", "zb_h1", "zb_v", "gpipe+recompute", "1f1b+delayed")
# Without a large eps, a gradient near zero makes a step as long as any other, whichever way it was rounded.
OPTIMIZERS: dict[str, OptimizerFactory] = {
    "sgd": SGD,
    "groups": SGD_OF["shape"],
    "adam": partial(optim.Adam, lr=0.01, eps=1e-3),
    "adamw amsgrad": partial(optim.AdamW, lr=0.01, amsgrad=True, eps=1e-3),
    "rmsprop": partial(optim.RMSprop, lr=0.01, momentum=0.5, centered=True, eps=1e-3),
    "adagrad": partial(optim.Adagrad, lr=0.05, eps=1e-3),
    "nadam": partial(optim.NAdam, lr=0.01, eps=1e-3),
}


def runtime_of(
    program: Program, case: Case, pool: WorkerPool, optimizer: OptimizerFactory = SGD, **options: Any
) -> DistributedRuntime:
    model = case.fresh()
    bound = for_model(optimizer, model, case.loss)
    return DistributedRuntime(program, pool, initial_values(model, program.graph), bound, **options)


def trained_across(
    programs: Sequence[Program],
    case: Case,
    pool: WorkerPool,
    optimizer: OptimizerFactory = SGD,
    averaged: bool = False,
    **options: Any,
) -> Trained:
    """Two batches by each of the programs, one after another."""
    batches = batches_of(case, 2 * len(programs))
    runtime = runtime_of(programs[0], case, pool, optimizer, **options)
    losses = []
    for n, program in enumerate(programs):
        if n:
            runtime.switch(program, None)
        losses += [runtime.train_batch(*batch) for batch in batches[2 * n : 2 * n + 2]]
    return Trained(losses, runtime.state(averaged))


@pytest.mark.parametrize("name", few(list(CASES), 5))
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_any_placements_one_after_another_train_what_the_plain_loop_trains(
    name: str, pools: Pools, data: st.DataObject
) -> None:
    case = CASES[name]
    order = SCHEDULES[data.draw(st.sampled_from(ON_WORKERS), label="schedule")]
    which = data.draw(st.sampled_from(sorted(OPTIMIZERS)), label="optimizer")
    graph = captured_for(case, order)
    programs = [compiled(graph, scattered(data, graph, 3), 3, order) for _ in range(3)]
    size = order.microbatch_size(8)
    wanted = plain_loop(case.fresh(), case.loss, batches_of(case, 6), size, OPTIMIZERS[which])
    assert_same(trained_across(programs, case, pools(3), OPTIMIZERS[which]), wanted)


@pytest.mark.parametrize("name", few(list(RATES), 3))
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_schedulers_and_averages_go_on_after_a_switch(name: str, pools: Pools, data: st.DataObject) -> None:
    which, scheduler = RATES[name]
    case = CASES[data.draw(st.sampled_from(["chain", "tied", "shared_norm"]), label="case")]
    order = SCHEDULES["gpipe"]
    graph = captured_for(case, order)
    programs = [compiled(graph, scattered(data, graph, 3), 3, order) for _ in range(3)]
    rule = UpdateRule(learning_rate=LearningRate(scheduler), ema_decay=0.7)
    average: Callable[[nn.Module], AveragedModel] = partial(
        AveragedModel, multi_avg_fn=get_ema_multi_avg_fn(0.7)
    )
    every: Any = (case.loss, batches_of(case, 6), 2, SGD_OF[which])
    wanted = plain_loop(case.fresh(), *every, scheduler=scheduler)
    averaged = plain_loop(case.fresh(), *every, scheduler=scheduler, averages=average)
    assert_same(trained_across(programs, case, pools(3), SGD_OF[which], rule=rule), wanted)
    assert_close(
        trained_across(programs, case, pools(3), SGD_OF[which], averaged=True, rule=rule).state,
        averaged.state,
    )


@pytest.mark.parametrize("way", few(list(GROUPED), 2))
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_groups_of_parameters_move_with_their_settings(way: str, pools: Pools, data: st.DataObject) -> None:
    optimizer, plain, named = GROUPED[way]
    case, order = CASES["chain"], SCHEDULES["1f1b"]
    graph = captured_for(case, order)
    programs = [compiled(graph, scattered(data, graph, 3), 3, order) for _ in range(3)]
    wanted = plain_loop(case.fresh(), case.loss, batches_of(case, 6), 2, plain, named=named)
    assert_same(trained_across(programs, case, pools(3), optimizer), wanted)


def test_replicas_come_and_go(pools: Pools) -> None:
    """Stages without statistics: what data parallelism trains is what one device trains."""
    order = SCHEDULES["gpipe"]
    graph = captured_for(STAGES, order)
    alone = compiled(graph, by_stage(graph, ["cpu:2", "cpu:0", "cpu:1", "cpu:1"]), 3, order)
    copied = compiled(
        graph, by_stage(graph, ["cpu:0", "cpu:0", "cpu:2", "cpu:2"]), 3, order,
        replicas={"cpu:0": ("cpu:0", "cpu:1")},
    )  # fmt: skip
    others = compiled(
        graph, by_stage(graph, ["cpu:0", "cpu:0", "cpu:1", "cpu:1"]), 3, order,
        replicas={"cpu:1": ("cpu:1", "cpu:2")},
    )  # fmt: skip
    trained = trained_across([copied, others, alone, copied], STAGES, pools(3))
    names = {name for name, _ in STAGES.fresh().named_parameters()}
    wanted = _replicated_in_turn([(2, 2, 1, 1), (1, 1, 2, 2), (1, 1, 1, 1), (2, 2, 1, 1)])
    assert trained.losses == pytest.approx(wanted.losses, rel=1e-9)
    assert_close({k: trained.state[k] for k in names}, {k: wanted.state[k] for k in names})


def _replicated_in_turn(counts: Sequence[Sequence[int]]) -> Trained:
    """Replicas share parameters, so their number changes no parameter: one loop is all of them."""
    return replicated_loop(
        chain_of(STAGES), counts[0], STAGES.loss, batches_of(STAGES, 2 * len(counts)), 2, SGD
    )


def test_what_does_not_change_its_device_does_not_move(pools: Pools) -> None:
    case, order = CASES["chain"], SCHEDULES["gpipe"]
    graph = captured_for(case, order)
    first, second = (compiled(graph, cut(graph, at), 2, order) for at in ((0.5,), (0.9,)))
    runtime = runtime_of(first, case, pools(2), partial(optim.Adam, lr=0.01))
    runtime.train_batch(*case.batch())
    moved = [k for k in second.held["cpu:0"] if k in first.held["cpu:1"]]
    sizes = {k: t.nbytes for k, t in runtime.state().items() if t.dim() > 0}
    parameters = {k for k in moved if graph.initializers[k].requires_grad}
    expected = sum(sizes.get(k, 0) * (3 if k in parameters else 1) for k in moved)
    assert expected > 0
    assert runtime.switch(second, None) == expected
    assert runtime.switch(second, None) == 0


def test_gradients_that_wait_for_a_step_are_not_lost(pools: Pools) -> None:
    case, order = CASES["chain"], SCHEDULES["gpipe"]
    graph = captured_for(case, order)
    first, second = (compiled(graph, cut(graph, at), 2, order) for at in ((0.5,), (0.9,)))
    batches = batches_of(case, 2)
    runtime = runtime_of(first, case, pools(2))
    losses = [runtime.train_batch(*batches[0], fraction=0.5, step=False)]
    with pytest.raises(NetSplitError, match="gradients are waiting for a step"):
        runtime.switch(second, None)
    losses.append(runtime.train_batch(*batches[1], fraction=0.5))
    runtime.switch(second, None)
    wanted = plain_loop(case.fresh(), case.loss, batches, 2, SGD, group=2)
    assert_same(Trained(losses, runtime.state()), wanted)
