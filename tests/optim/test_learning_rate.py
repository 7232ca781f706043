"""Learning rates: what cannot be scheduled is refused before training, with its reason in one sentence."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from torch import nn, optim
from torch.optim import lr_scheduler as lr

from netsplit.errors import ConfigError, NetSplitError
from netsplit.optim.learning_rate import LearningRate, learning_rate, require_same_rates
from netsplit.optim.optimizers import for_model

MODEL = nn.Linear(6, 3)
OTHER = optim.SGD(MODEL.parameters(), lr=0.1)
RATES_REFUSED: dict[str, tuple[Any, str]] = {
    "of another optimiser": (lambda _: lr.StepLR(OTHER, 3), "StepLR schedules another optimiser"),
    "none": (lambda optimizer: optimizer, "returns a SGD, not a torch.optim.lr_scheduler.LRScheduler"),
    "plateau every step": (lr.ReduceLROnPlateau, "needs the loss of an epoch"),
    "of unknown length": (
        LearningRate(lr.CosineAnnealingLR, T_max="all"),
        "scheduler.T_max is 'all', but the training's length is unknown",
    ),
}


@pytest.mark.parametrize("name", RATES_REFUSED)
def test_a_scheduler_is_refused_with_the_true_reason(name: str) -> None:
    given, words = RATES_REFUSED[name]
    rate = learning_rate(given)
    assert rate is not None
    with pytest.raises(ConfigError, match=words) as e:
        rate.check(for_model(partial(optim.SGD, lr=0.1, momentum=0.9), MODEL))
    assert "\n" not in str(e.value)


def test_trying_a_scheduler_leaves_what_its_function_counts() -> None:
    counted = itertools.count()
    rate = LearningRate(lambda o: lr.LambdaLR(o, lambda _: 1.0 / (1 + next(counted))))
    rate.check(for_model(partial(optim.SGD, lr=0.1, momentum=0.9), MODEL))
    assert next(counted) == 0  # trying it counted in a copy


def test_a_scheduler_that_ends_before_the_training_is_refused() -> None:
    optimizer = for_model(partial(optim.SGD, lr=0.1, momentum=0.9), MODEL)
    rate = LearningRate(lr.OneCycleLR, max_lr=0.1, total_steps=10)
    rate.check_steps(optimizer, 10)
    with pytest.raises(ConfigError, match=r"OneCycleLR ends after 10 steps, but the training has 11"):
        rate.check_steps(optimizer, 11)


def test_devices_with_unlike_rates_stop_the_training() -> None:
    require_same_rates({"cpu:0": [0.1, 0.2], "cpu:1": [0.1, 0.2]})
    with pytest.raises(
        NetSplitError, match=r"gives cpu:0 the learning rate 0\.2, but cpu:1 0\.3: .* step count alone"
    ):
        require_same_rates({"cpu:0": [0.1, 0.2], "cpu:1": [0.1, 0.3]})
