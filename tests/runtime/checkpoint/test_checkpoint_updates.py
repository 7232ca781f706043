"""Schedulers, groups and averages in checkpoints: other placements and plain PyTorch go on with them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import optim
from torch.optim import lr_scheduler as lr
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from netsplit.errors import ConfigError
from netsplit.graph import initial_values
from netsplit.optim.learning_rate import LearningRate, SchedulerFactory
from netsplit.optim.optimizers import OptimizerFactory, for_model
from netsplit.program import Program
from netsplit.runtime.checkpoint.files import Refusal
from netsplit.runtime.checkpoint.shares import load_plain
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import UpdateRule
from tests.builders import compile_placed, cpus
from tests.cover import few
from tests.nets import CASES, SGD, TOLERANCE, Case, placements
from tests.runtime.checkpoint.test_checkpoint import (
    CHAIN,
    ORDER,
    captured_of,
    holders,
    program_of,
    restore,
    save,
    train,
)
from tests.runtime.equivalence.test_updates import RATES, SGD_OF
from tests.runtime.references import plain_loop

DECAY = 0.7


def runtime_of(
    program: Program, case: Case, optimizer: OptimizerFactory, rule: UpdateRule | None = None
) -> LocalRuntime:
    model = case.fresh()
    values = initial_values(model, program.graph)
    bound = for_model(optimizer, model, case.loss)
    return LocalRuntime(program, cpus(len(program.devices)), values, bound, rule)


def rule_of(scheduler: SchedulerFactory | None = None, decay: float | None = None) -> UpdateRule:
    rate = None if scheduler is None else LearningRate(scheduler)
    return UpdateRule(learning_rate=rate, ema_decay=decay)


@pytest.mark.parametrize("name", few(list(RATES), 4))
@settings(max_examples=1, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_three_devices_then_two_then_plain_is_one_schedule(name: str, data: st.DataObject) -> None:
    """Two steps on each with averages, by checkpoints; against six steps of the plain loop."""
    which, scheduler = RATES[name]
    optimizer: Callable[..., optim.Optimizer] = SGD_OF[which]
    scheduler = partial(lr.OneCycleLR, max_lr=0.2, total_steps=9) if name.startswith("one") else scheduler
    case = CASES[data.draw(st.sampled_from(["chain", "tied", "shared_norm"]), label="case")]
    graph, batch = captured_of(case), (case.inputs, case.targets)
    average = partial(AveragedModel, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    model = case.build().double()
    plain = optimizer([p for p in model.parameters() if p.requires_grad])
    rate, averages = scheduler(plain), average(model)
    with tempfile.TemporaryDirectory() as place:
        last: Path | None = None
        for devices in (3, 2):
            device_of, priority = data.draw(placements(graph, devices))
            program = compile_placed(graph, device_of, priority, cpus(devices), ORDER)
            runtime = runtime_of(program, case, optimizer, rule_of(scheduler, DECAY))
            if last is not None:
                assert restore(runtime, last) == [[]] * devices
            train(runtime, case, 2)
            last = Path(place) / f"on-{devices}"
            save(runtime, case, last)
        load_plain(last, model, plain, scheduler=rate, averages=averages)
    for _ in range(2):
        for *inputs, targets in zip(*(t.chunk(4) for t in (*batch[0], batch[1])), strict=True):
            (case.loss(model(*inputs), targets) / 4).backward()
        plain.step()
        averages.update_parameters(model)
        rate.step()
        plain.zero_grad()
    wanted = plain_loop(case.fresh(), case.loss, [batch] * 6, 2, optimizer, scheduler=scheduler)
    averaged = plain_loop(
        case.fresh(), case.loss, [batch] * 6, 2, optimizer, scheduler=scheduler, averages=average
    )
    for module, expected in ((model, wanted), (averages.module, averaged)):
        for key, tensor in module.state_dict().items():
            torch.testing.assert_close(tensor, expected.state[key], rtol=TOLERANCE, atol=TOLERANCE)


HALF, STEPPED = partial(lr.ExponentialLR, gamma=0.5), partial(lr.StepLR, step_size=1)


@pytest.mark.parametrize(
    ("saved", "here", "words"),
    [
        (None, HALF, "was saved without a scheduler, but this training has ExponentialLR"),
        (STEPPED, HALF, "was saved with the scheduler StepLR, but this training has ExponentialLR"),
    ],
)
def test_another_scheduler_is_refused_before_anything_is_changed(
    saved: Any, here: Any, words: str, tmp_path: Path
) -> None:
    program = program_of(captured_of(CHAIN), 2)
    first = runtime_of(program, CHAIN, SGD, rule_of(saved))
    train(first, CHAIN, 1)
    save(first, CHAIN, tmp_path / "one")
    second = runtime_of(program, CHAIN, SGD, rule_of(here))
    before = second.state()
    for holder in holders(second):
        answer = holder.load(tmp_path / "one")
        assert isinstance(answer, Refusal)
        assert words in answer.reason
        assert "\n" not in answer.reason
    assert all(torch.equal(before[key], tensor) for key, tensor in second.state().items())
    model = CHAIN.fresh()
    plain = SGD(model.parameters())
    with pytest.raises(ConfigError, match=words):
        load_plain(tmp_path / "one", model, plain, scheduler=here(plain))
