"""Training options: one record, made from a call or a config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, get_args

from torch import nn

from netsplit.errors import ConfigError
from netsplit.graph.batches.batch import Loss
from netsplit.optim.learning_rate import LearningRate
from netsplit.optim.optimizers import MOMENTUM, for_model
from netsplit.partition.base import MemoryRule
from netsplit.profile.measure.optimizer import check_optimizer, check_switchable
from netsplit.runtime.checkpoint.weights import WeightSource
from netsplit.runtime.share import OptimizerFactory, UpdateRule
from netsplit.settings import (
    LowPrecision,
    OffloadName,
    OnNonFinite,
    Settings,
    check_numbers,
    check_switches,
)
from netsplit.training.adapt.adaptation import Adapt

__all__ = ["MAX_PROGRAMS", "Training", "check_choice"]

MAX_PROGRAMS = 16  # kinds of batches in training, and as many in prediction


@dataclass(frozen=True)
class Training:
    """All options of a training besides model, batch, devices, method and schedule.

    What is not explained here is as `netsplit.parallelize` has it.

    Args:
        learning_rate: how it changes while training goes on.
        seed: of methods that draw at random, and of random operators.
        weights: where workers have the values from of a model on the meta device.
        memory: as of `settings.Settings`; `variable_copies` likewise.

    Raises:
        ConfigError: a value that cannot be used.
    """

    optimizer: OptimizerFactory = MOMENTUM
    learning_rate: LearningRate | None = None
    ema_decay: float | None = None
    clip_norm: float | None = None
    autocast: str | None = None
    seed: int = 0
    max_programs: int = MAX_PROGRAMS
    check: bool = True
    on_nonfinite: OnNonFinite = "stop"
    weights: WeightSource | None = None
    compile_backend: str | None = None
    offload: OffloadName = "none"
    adapt: bool | Adapt = False
    memory: MemoryRule = "lifetimes"
    variable_copies: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.adapt, bool | Adapt):
            raise ConfigError(f"adapt is {self.adapt!r}: give True, False, or netsplit.Adapt(...).")
        if self.weights is not None and not isinstance(self.weights, WeightSource):
            raise ConfigError(
                f"weights is {self.weights!r}: give SafetensorsWeights(path) or another WeightSource."
            )
        check_choice("autocast", self.autocast, get_args(LowPrecision), optional=True)
        check_choice("on_nonfinite", self.on_nonfinite, get_args(OnNonFinite))
        check_choice("offload", self.offload, get_args(OffloadName))
        check_switches(check=self.check)
        check_numbers(
            max_programs=self.max_programs, clip_norm=self.clip_norm, ema_decay=self.ema_decay, seed=self.seed
        )

    @classmethod
    def of(
        cls, settings: Settings, optimizer: OptimizerFactory, learning_rate: LearningRate | None = None
    ) -> Self:
        names = {each.name for each in fields(cls)} & {each.name for each in fields(settings)}
        return cls(optimizer, learning_rate, **{name: getattr(settings, name) for name in names})

    @property
    def looks(self) -> Adapt | None:
        """When to look for other plans; None: never."""
        return Adapt() if self.adapt is True else self.adapt or None

    @property
    def rule(self) -> UpdateRule:
        return UpdateRule(
            self.clip_norm,
            self.autocast == "float16",
            self.learning_rate,
            self.ema_decay,
            self.on_nonfinite,
        )

    def made_for(self, model: nn.Module, loss: Loss | None) -> Training:
        """The options, with the optimiser built for this model's parameters."""
        optimizer = for_model(self.optimizer, model, loss)
        check_optimizer(optimizer)
        if self.learning_rate is not None:
            self.learning_rate.check(optimizer)
        if self.looks is not None:
            check_switchable(optimizer, self.learning_rate)
        return replace(self, optimizer=optimizer)


def check_choice(name: str, value: Any, known: Sequence[str], optional: bool = False) -> None:
    if value not in known and not (optional and value is None):
        raise ConfigError(f"{name} is {value!r}: give one of {', '.join(known)}{', or None' * optional}.")
