"""Learning rates: what cannot be scheduled is refused before training, with its reason in one sentence."""

from __future__ import annotations

import itertools
import os
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as lr

from netsplit.errors import ConfigError
from netsplit.optim.learning_rate import LearningRate, learning_rate
from netsplit.optim.optimizers import for_model

MODEL = nn.Linear(6, 3)
OTHER = optim.SGD(MODEL.parameters(), lr=0.1)
RATES_REFUSED: dict[str, tuple[Any, str]] = {
    "of another optimiser": (lambda _: lr.StepLR(OTHER, 3), "StepLR is of another optimiser than the one"),
    "none": (lambda optimizer: optimizer, "makes a SGD, which is no torch.optim.lr_scheduler.LRScheduler"),
    "plateau every step": (lr.ReduceLROnPlateau, "goes by the loss of an epoch"),
    "values of parameters": (
        lambda o: lr.LambdaLR(o, lambda _: float(sum(p.norm() for p in o.param_groups[0]["params"]))),
        "goes by values of parameters at .*test_learning_rate.py",
    ),
    "torch's random numbers": (
        lambda o: lr.LambdaLR(o, lambda _: float(torch.rand(()))),
        "gives another lr each time it is stepped from its beginning, as one that draws random numbers",
    ),
    "of unknown length": (
        LearningRate(lr.CosineAnnealingLR, T_max="all"),
        "scheduler.T_max is 'all', of a training of unknown length",
    ),
}


@pytest.mark.parametrize("name", RATES_REFUSED)
def test_a_scheduler_is_refused_with_the_true_reason(name: str) -> None:
    given, words = RATES_REFUSED[name]
    rate = learning_rate(given)
    assert rate is not None
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    process = os.getpid, os.getppid
    with pytest.raises(ConfigError, match=words) as e:
        rate.check(for_model(partial(optim.SGD, lr=0.1, momentum=0.9), MODEL))
    assert "\n" not in str(e.value)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2])
    assert (os.getpid, os.getppid) == process


def test_a_scheduler_may_draw_by_a_seed_of_its_own() -> None:
    """What it draws, and what a function counts, is the same in the copy of every device."""

    def drawn(optimizer: optim.Optimizer) -> lr.LRScheduler:
        own = torch.Generator().manual_seed(3)
        return lr.LambdaLR(optimizer, lambda _: float(torch.rand((), generator=own)))

    counted = itertools.count()
    before = torch.get_rng_state(), random.getstate()
    for scheduler in (drawn, lambda o: lr.LambdaLR(o, lambda _: 1.0 / (1 + next(counted)))):
        LearningRate(scheduler).check(for_model(partial(optim.SGD, lr=0.1, momentum=0.9), MODEL))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert next(counted) == 0  # trying it counted in a copy


def test_a_scheduler_that_ends_before_the_training_is_refused() -> None:
    optimizer = for_model(partial(optim.SGD, lr=0.1, momentum=0.9), MODEL)
    rate = LearningRate(lr.OneCycleLR, max_lr=0.1, total_steps=10)
    rate.check_steps(optimizer, 10)
    with pytest.raises(ConfigError, match=r"OneCycleLR ends after 10 steps, and the training has 11"):
        rate.check_steps(optimizer, 11)
