"""The optimiser's factor alpha is read off the optimiser itself."""

from __future__ import annotations

import math
from functools import partial

import pytest
from torch import optim

from netsplit.errors import ConfigError
from netsplit.optim.optimizers import OptimizerFactory
from netsplit.profile.measure.clock import step_seconds_per_byte
from netsplit.profile.measure.optimizer import optimizer_alpha

SGD = partial(optim.SGD, lr=0.1)


@pytest.mark.parametrize(
    ("factory", "alpha"),
    [
        (SGD, 2),
        (partial(SGD, momentum=0.9), 3),
        (partial(SGD, momentum=0.9, nesterov=True), 3),
        (optim.RMSprop, 3),
        (partial(optim.RMSprop, centered=True), 4),
        (optim.Adagrad, 3),
        (optim.Adam, 4),
        (optim.AdamW, 4),
        (partial(optim.Adam, amsgrad=True), 5),
    ],
)
def test_alpha_counts_parameter_gradient_and_moments(factory: OptimizerFactory, alpha: int) -> None:
    assert optimizer_alpha(factory) == alpha


def test_an_optimizer_that_wants_a_closure_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"LBFGS.*closure"):
        optimizer_alpha(optim.LBFGS)


def test_a_step_costs_positive_seconds_per_byte() -> None:
    seconds = step_seconds_per_byte(optim.Adam, {"weight": (64, 64), "bias": (64,)}, "cpu")
    assert 0 < seconds < math.inf
