"""Optimisers, groups of parameters, schedulers and averages do what they do in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler as lr
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from netsplit.graph import Graph, capture, initial_values
from netsplit.optim.learning_rate import LearningRate, warmup_cosine
from netsplit.optim.optimizers import ForModel, OptimizerFactory, ParameterGroups, for_model
from netsplit.program import GPipe, Program
from netsplit.program.schedules import AsyncOneFOneB, OneFOneB
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import UpdateRule
from tests.builders import cpus
from tests.nets import CASES, SGD, STAGES, TOLERANCE, Case
from tests.runtime.equivalence.running import (
    PATIENT,
    assert_close,
    assert_same,
    batches_of,
    captured_for,
    compiled,
    cut,
    local,
    scattered,
)
from tests.runtime.references import Trained, plain_loop
from tests.workers import Pools

STEPS = 4
ORDER = GPipe(4)
NAMES = ("chain", "tied", "shared_norm", "two_heads", "attention")
OPTIMIZERS: dict[str, OptimizerFactory] = {
    "sgd foreach": partial(optim.SGD, lr=0.05, momentum=0.9, foreach=True),
    "sgd fused": partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True, fused=True),
    "adam amsgrad": partial(optim.Adam, lr=0.01, amsgrad=True),
    "adamw": partial(optim.AdamW, lr=0.01, weight_decay=0.1),
    "adamw foreach": partial(optim.AdamW, lr=0.01, weight_decay=0.1, foreach=True),
    "adamw fused": partial(optim.AdamW, lr=0.01, weight_decay=0.1, fused=True),
    "adagrad": partial(optim.Adagrad, lr=0.05, initial_accumulator_value=0.1),
    "adagrad fused": partial(optim.Adagrad, lr=0.05, fused=True),
    "rmsprop": partial(optim.RMSprop, lr=0.01, centered=True, momentum=0.5),
    "nadam": partial(optim.NAdam, lr=0.01),
    "radam": partial(optim.RAdam, lr=0.05),
    "adamax": partial(optim.Adamax, lr=0.01),
    "adadelta": partial(optim.Adadelta, lr=1.0),
    "asgd": partial(optim.ASGD, lr=0.05, t0=2),
    "rprop": partial(optim.Rprop, lr=0.01),
    "adafactor": partial(optim.Adafactor, lr=0.05),
}


def bound(factory: OptimizerFactory, case: Case) -> ForModel:
    return for_model(factory, case.fresh(), case.loss)


def drawn_program(data: st.DataObject, case: Case, devices: int) -> Program:
    graph = captured_for(case, ORDER)
    return compiled(graph, scattered(data, graph, devices), devices, ORDER)


def assert_trains_as_plain(
    data: st.DataObject, name: str, optimizer: OptimizerFactory, rule: UpdateRule | None = None, **plain: Any
) -> None:
    case = CASES[name]
    devices = data.draw(st.sampled_from([2, 3]), label="devices")
    program = drawn_program(data, case, devices)
    batches = batches_of(case, STEPS)
    wanted = plain_loop(case.fresh(), case.loss, batches, 2, optimizer, **plain)
    assert_same(local(program, case, batches, bound(optimizer, case), rule=rule), wanted)


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_every_optimizer_of_torch_that_steps_on_gradients(name: str, data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(NAMES), label="case")
    assert_trains_as_plain(data, case, OPTIMIZERS[name])


# --- groups -------------------------------------------------------------------------------------------


def by_name(named_parameters: Any) -> optim.Optimizer:
    """As people write it for ``model.named_parameters()``."""
    pairs = list(named_parameters)
    apart = [name.endswith("bias") or "norm" in name for name, _ in pairs]
    plain = [pair for pair, is_apart in zip(pairs, apart, strict=True) if is_apart]
    rest = [pair for pair, is_apart in zip(pairs, apart, strict=True) if not is_apart]
    groups = [{"params": rest}, {"params": plain, "weight_decay": 0.0, "lr": 0.05}]
    return optim.AdamW(groups, lr=0.01, weight_decay=0.2)


def by_shape(parameters: Any) -> optim.Optimizer:
    """A device may have parameters of one kind only; torch has groups without any."""
    every = list(parameters)
    kinds = [[p for p in every if p.ndim > 1], [p for p in every if p.ndim <= 1]]
    return optim.SGD([{"params": kinds[0], "lr": 0.05}, {"params": kinds[1], "lr": 0.01}], momentum=0.9)


def by_position(parameters: Any) -> optim.Optimizer:
    """Layer-wise decay: what a parameter's rate is depends on how many come before it."""
    groups = [{"params": [p], "lr": 0.05 * 0.8**i} for i, p in enumerate(parameters)]
    return optim.SGD(groups, momentum=0.9)


MATCHED = ParameterGroups(
    optim.AdamW,
    lr=0.01,
    weight_decay=0.2,
    groups=[{"match": ["*bias", "*norm*"], "weight_decay": 0.0, "lr": 0.05}],
)
GROUPED: dict[str, tuple[OptimizerFactory, OptimizerFactory, bool]] = {
    "matched": (MATCHED, by_name, True),  # a group each, made by two different ways
    "named": (by_name, by_name, True),
    "shape": (by_shape, by_shape, False),
    "position": (by_position, by_position, False),
}


@pytest.mark.parametrize("way", GROUPED)
@settings(PATIENT, max_examples=2)
@given(data=st.data())
def test_groups_are_those_of_the_whole_model(way: str, data: st.DataObject) -> None:
    ours, plain, named = GROUPED[way]
    case = CASES[data.draw(st.sampled_from(NAMES), label="case")]
    program = drawn_program(data, case, data.draw(st.sampled_from([2, 3]), label="devices"))
    batches = batches_of(case, STEPS)
    wanted = plain_loop(case.fresh(), case.loss, batches, 2, plain, named=named)
    assert_same(local(program, case, batches, bound(ours, case)), wanted)


# --- learning rates -----------------------------------------------------------------------------------

SGD_OF: dict[str, OptimizerFactory] = {
    "sgd": SGD,
    "adam": partial(optim.Adam, lr=0.01),
    "shape": by_shape,
}
RATES: dict[str, tuple[str, Callable[[optim.Optimizer], Any]]] = {
    "cosine": ("adam", partial(lr.CosineAnnealingLR, T_max=3)),
    "restarts": ("sgd", partial(lr.CosineAnnealingWarmRestarts, T_0=2)),
    "step": ("shape", partial(lr.StepLR, step_size=2, gamma=0.3)),
    "exponential": ("sgd", partial(lr.ExponentialLR, gamma=0.5)),
    "one cycle": ("sgd", partial(lr.OneCycleLR, max_lr=0.2, total_steps=6)),
    "one cycle of betas": ("adam", partial(lr.OneCycleLR, max_lr=0.2, total_steps=6)),
    "cyclic": ("sgd", partial(lr.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=2)),
    "lambda for each group": (
        "shape",
        lambda o: lr.LambdaLR(o, [lambda epoch: 1 / (1 + epoch), lambda epoch: 0.5**epoch]),
    ),
    "sequential": (
        "sgd",
        lambda o: lr.SequentialLR(
            o, [lr.LinearLR(o, 0.1, total_iters=2), lr.ExponentialLR(o, 0.5)], milestones=[2]
        ),
    ),
    "chained": (
        "sgd",
        lambda o: lr.ChainedScheduler([lr.ConstantLR(o, 0.1, total_iters=2), lr.ExponentialLR(o, 0.9)]),
    ),
    "warmup cosine": ("adam", partial(warmup_cosine, warmup=2, steps=5)),
}


@pytest.mark.parametrize("name", RATES)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_schedulers_step_on_every_device_as_on_one(name: str, data: st.DataObject) -> None:
    which, scheduler = RATES[name]
    case = data.draw(st.sampled_from(NAMES), label="case")
    rule = UpdateRule(learning_rate=LearningRate(scheduler))
    assert_trains_as_plain(data, case, SGD_OF[which], rule, scheduler=scheduler)


@pytest.mark.parametrize("weights", ["stashed", "double"])
def test_where_devices_step_within_the_batch_the_scheduler_steps_once_a_batch(weights: str) -> None:
    order = AsyncOneFOneB(4, weights=weights)  # type: ignore[arg-type]
    graph = captured_for(STAGES, order)
    program = compiled(graph, cut(graph, [0.3, 0.6]), 3, order)
    rule = UpdateRule(learning_rate=LearningRate(partial(lr.ExponentialLR, gamma=0.5)), ema_decay=0.7)
    values = initial_values(STAGES.fresh(), graph)
    runtime = LocalRuntime(program, cpus(3), values, bound(SGD, STAGES), rule)
    for batch in batches_of(STAGES, 3):
        runtime.train_batch(*batch)
    assert [share.learning_rates for share in runtime.shares.values()] == [[0.05 / 8]] * 3
    assert [share.averages.count for share in runtime.shares.values() if share.averages] == [3] * 3


def test_float16_with_a_scheduler_is_torchs_loop_with_its_scaler_bit_for_bit() -> None:
    """The first steps overflow at torch's first scale and are skipped; the scheduler steps with each."""
    model = STAGES.fresh().float()
    batches = [((x.float() * 100,), targets) for (x,), targets in batches_of(STAGES, 8)]
    example = tuple(t[:2] for t in batches[0][0]), batches[0][1][:2]
    graph = capture(model, STAGES.loss, example, autocast="float16")
    device_of = dict.fromkeys(graph.nodes, "cpu:0")
    program = compiled(graph, device_of, 2, ORDER, shared_norm=True)
    scheduler, optimizer = partial(lr.StepLR, step_size=2, gamma=0.5), partial(optim.SGD, lr=1e-3)
    rule = UpdateRule(loss_scaling=True, learning_rate=LearningRate(scheduler))
    values = initial_values(STAGES.fresh().float(), graph)
    runtime = LocalRuntime(program, cpus(2), values, for_model(optimizer, model), rule)
    losses = [runtime.train_batch(*batch) for batch in batches]
    wanted = plain_loop(
        STAGES.fresh().float(),
        STAGES.loss,
        batches,
        2,
        optimizer,
        autocast=torch.float16,
        scheduler=scheduler,
    )
    assert losses == wanted.losses
    assert all(torch.equal(t, wanted.state[k]) for k, t in runtime.state().items())
    assert runtime.shares["cpu:0"].loss_factor < 65536.0
    assert not all(torch.equal(t, values[k]) for k, t in runtime.state().items())


# --- averages -----------------------------------------------------------------------------------------


def averaged(model: nn.Module) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7))


def averages_of(runtime: LocalRuntime) -> dict[str, Tensor]:
    averages = runtime.state()
    for share in runtime.shares.values():
        assert share.averages is not None
        averages |= share.averages.values
    return averages


@pytest.mark.parametrize("name", NAMES)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_averages_are_those_of_torchs_averaged_model(name: str, data: st.DataObject) -> None:
    """Parameters averaged; buffers those of the model, as `AveragedModel` has it by default."""
    case = CASES[name]
    program = drawn_program(data, case, data.draw(st.sampled_from([2, 3]), label="devices"))
    values = initial_values(case.fresh(), program.graph)
    rule = UpdateRule(ema_decay=0.7)
    runtime = LocalRuntime(program, cpus(len(program.devices)), values, bound(SGD, case), rule)
    batches = batches_of(case, STEPS)
    losses = [runtime.train_batch(*batch) for batch in batches]
    wanted = plain_loop(case.fresh(), case.loss, batches, 2, SGD, averages=averaged)
    assert_same(Trained(losses, averages_of(runtime)), wanted)


# --- frozen parameters --------------------------------------------------------------------------------


class Frozen(Case):
    """Every second parameter is not to be trained; the first layer has none that is."""

    def fresh(self) -> nn.Module:
        model = super().fresh()
        for i, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(i > 1 and i % 2 == 0)
        return model


@cache
def frozen_graph(case: Case, size: int) -> Graph:
    return capture(case.fresh(), case.loss, case.another(0, size))


@pytest.mark.parametrize("name", ["chain", "stages", "attention"])
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_frozen_parameters_stay_and_the_rest_trains(name: str, data: st.DataObject) -> None:
    plain = CASES.get(name, STAGES)
    case = Frozen(plain.name, plain.build, plain.inputs, plain.targets, plain.loss)
    optimizer = partial(optim.AdamW, lr=0.01, weight_decay=0.1)
    graph = frozen_graph(case, 2)
    program = compiled(graph, scattered(data, graph, 3), 3, OneFOneB(4))
    batches = batches_of(case, STEPS)
    wanted = plain_loop(case.fresh(), case.loss, batches, 2, optimizer)
    rule = UpdateRule(clip_norm=0.1)
    clipped = plain_loop(case.fresh(), case.loss, batches, 2, optimizer, clip_norm=0.1)
    assert_same(local(program, case, batches, bound(optimizer, case)), wanted)
    normed = compiled(graph, scattered(data, graph, 3), 3, OneFOneB(4), shared_norm=True)
    assert_same(local(normed, case, batches, bound(optimizer, case), rule=rule), clipped)
    for key, parameter in case.fresh().named_parameters():
        assert torch.equal(wanted.state[key], parameter) is not parameter.requires_grad


# --- worker processes ---------------------------------------------------------------------------------


def test_averages_and_groups_on_worker_processes(pools: Pools) -> None:
    case = CASES["chain"]
    graph = captured_for(case, ORDER)
    program = compiled(graph, cut(graph, [0.4, 0.7]), 3, ORDER)
    values = initial_values(case.fresh(), graph)
    rule = UpdateRule(ema_decay=0.7, learning_rate=LearningRate(partial(lr.ExponentialLR, gamma=0.5)))
    runtime = DistributedRuntime(program, pools(3), values, bound(MATCHED, case), rule=rule)
    batches = batches_of(case, STEPS)
    losses = [runtime.train_batch(*batch) for batch in batches]
    wanted = plain_loop(
        case.fresh(),
        case.loss,
        batches,
        2,
        by_name,
        named=True,
        scheduler=partial(lr.ExponentialLR, gamma=0.5),
        averages=averaged,
    )
    assert_same(Trained(losses, runtime.state(averaged=True)), wanted)
    assert runtime.rates == pytest.approx([0.01 / 8, 0.05 / 8])  # in the last step
    assert runtime.learning_rates == pytest.approx([0.01 / 16, 0.05 / 16])
    runtime.learning_rates = [0.0, 0.0]
    before = runtime.state()
    runtime.train_batch(*batches[0])
    trained = {k: t for k, t in runtime.state().items() if k in dict(case.fresh().named_parameters())}
    assert_close(trained, {k: before[k] for k in trained}, TOLERANCE)
