"""Learning rates that change during training: torch's schedulers, the same on every device."""

from __future__ import annotations

import inspect
import math
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import cloudpickle
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, ReduceLROnPlateau, SequentialLR

from netsplit.errors import ConfigError, NetSplitError
from netsplit.optim.optimizers import ForModel, make_optimizer
from netsplit.signature import called, check_settings

__all__ = ["LearningRate", "SchedulerFactory", "constant", "warmup_cosine"]

SchedulerFactory = Callable[[Optimizer], LRScheduler]

ALL = "all"
_TRIED = 3  # steps before training


class LearningRate:
    """A scheduler of the learning rate, and of whatever else it changes (momentum).

    ``LearningRate(torch.optim.lr_scheduler.CosineAnnealingLR, every="epoch", T_max=20)``

    Args:
        scheduler: a class of schedulers, or its dotted name, or a function of an optimiser.
        every: "step": stepped after each optimiser step, skipped ones too; after each batch if devices step
            within it. "epoch": after each epoch of ``netsplit.training.epochs.fit``, or by
            `ParallelModel.step_scheduler`, as for ``ReduceLROnPlateau``.
        settings: of the scheduler. "all" stands for the number of its steps in a training of known length.

    Raises:
        ConfigError: an unknown setting.
    """

    def __init__(
        self, scheduler: SchedulerFactory | str, every: Literal["step", "epoch"] = "step", **settings: Any
    ) -> None:
        if every not in ("step", "epoch"):
            raise ConfigError(f"scheduler.every is {every!r}: give one of step, epoch.")
        self.scheduler = called(scheduler, "scheduler")
        self.every = every
        self.settings = check_settings(self.scheduler, settings, "scheduler")

    def __repr__(self) -> str:
        name = getattr(self.scheduler, "__name__", str(self.scheduler))
        return f"LearningRate({name}, every={self.every!r}, {self.settings})"

    def over(self, epochs: int, steps_per_epoch: int) -> LearningRate:
        """The same scheduler with numbers for "all"."""
        count = epochs * (steps_per_epoch if self.every == "step" else 1)
        settings = {key: count if value == ALL else value for key, value in self.settings.items()}
        return LearningRate(self.scheduler, self.every, **settings)

    def scheduler_for(self, optimizer: Optimizer) -> LRScheduler:
        for key, value in self.settings.items():
            if value == ALL:
                raise ConfigError(
                    f"scheduler.{key} is 'all', but the training's length is unknown: give a number."
                )
        return self.scheduler(optimizer, **self.settings)

    def _tried_on(self, optimizer: Optimizer) -> LRScheduler:
        """The scheduler of a copy, as trying one may change its functions' state."""
        try:
            copy: LearningRate = cloudpickle.loads(cloudpickle.dumps(self))
        except Exception as error:  # whatever a function holds
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"scheduler cannot be sent to a worker ({reason}): build it from numbers and functions."
            ) from error
        return copy.scheduler_for(optimizer)

    def check(self, optimizer: ForModel) -> None:
        """Try the scheduler on an optimiser without values, before workers start; raises ConfigError."""
        try:
            own = make_optimizer(optimizer, {}).optimizer
            scheduler = self._tried_on(own)
            if not isinstance(scheduler, LRScheduler):
                raise ConfigError(
                    f"scheduler returns a {type(scheduler).__name__}, not a "
                    "torch.optim.lr_scheduler.LRScheduler: give a function of an optimiser that returns "
                    "one."
                )
            for each in (scheduler, *getattr(scheduler, "_schedulers", ())):
                if each.optimizer is not own:
                    raise ConfigError(
                        f"scheduler {type(each).__name__} schedules another optimiser, which is never "
                        "stepped: build it on its argument, as in lambda optimizer: StepLR(optimizer, 30)."
                    )
            if isinstance(scheduler, ReduceLROnPlateau) and self.every == "step":
                raise ConfigError(
                    "scheduler ReduceLROnPlateau needs the loss of an epoch: give "
                    "netsplit.LearningRate(ReduceLROnPlateau, every='epoch')."
                )
            for _ in range(_TRIED):
                step(scheduler, 1.0)
            if not all(math.isfinite(group["lr"]) for group in own.param_groups):
                raise ConfigError(
                    f"scheduler gives an infinite or NaN learning rate within {_TRIED} steps: "
                    f"correct the settings of {self!r}."
                )
            pickle.dumps(scheduler.state_dict())
        except ConfigError:
            raise
        except Exception as error:  # a function may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"scheduler cannot be built from {self!r} ({reason}): give a function of an optimiser, such "
                "as functools.partial(torch.optim.lr_scheduler.StepLR, step_size=30)."
            ) from error

    def check_switchable(self, optimizer: Optimizer, other: Optimizer) -> None:
        """Raises ConfigError: rates differ after loading its `state_dict`, as for another plan."""
        scheduler, resumed = map(self._tried_on, (optimizer, other))
        for _ in range(_TRIED):
            step(scheduler, 1.0)
        resumed.load_state_dict(pickle.loads(pickle.dumps(scheduler.state_dict())))
        for group, own in zip(other.param_groups, optimizer.param_groups, strict=True):
            group.update({key: value for key, value in own.items() if key != "params"})
        for _ in range(_TRIED):
            step(scheduler, 1.0)
            step(resumed, 1.0)
            if [group["lr"] for group in optimizer.param_groups] != [g["lr"] for g in other.param_groups]:
                raise ConfigError(
                    f"scheduler {type(scheduler).__name__} gives other rates once its state_dict() is "
                    "reloaded, as when the plan changes: compute rates from the step count, or keep all "
                    "they need in state_dict()."
                )

    def check_steps(self, optimizer: ForModel, steps: int) -> None:
        """Raises ConfigError: it ends earlier, as ``OneCycleLR`` may."""
        scheduler = self._tried_on(make_optimizer(optimizer, {}).optimizer)
        last = getattr(scheduler, "total_steps", None)
        if isinstance(last, int) and last < steps:
            raise ConfigError(
                f"scheduler {type(scheduler).__name__} ends after {last} steps, but the training has "
                f"{steps}: give total_steps={steps}, or more."
            )

    def check_loss(self, loss: float | None) -> None:
        """Raises ConfigError: there is no loss for ``ReduceLROnPlateau``."""
        if loss is None and self.scheduler is ReduceLROnPlateau:
            raise ConfigError("ReduceLROnPlateau needs a loss: give one to step_scheduler.")


def step(scheduler: LRScheduler, loss: float | None) -> None:
    """One step; raises ConfigError at the scheduler's end, or if its loss is missing."""
    with warnings.catch_warnings():
        # Where a device has nothing to train, or a loss scale skips a step, the optimiser has not stepped.
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        try:
            if isinstance(scheduler, ReduceLROnPlateau):
                if loss is None:
                    raise ConfigError("ReduceLROnPlateau needs a loss: give one to step_scheduler.")
                scheduler.step(loss)
            else:
                scheduler.step()
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            reason = " ".join(str(error).split())
            raise ConfigError(f"scheduler {type(scheduler).__name__} cannot continue: {reason}") from error


def every_epoch(rate: LearningRate | None) -> LearningRate:
    """The scheduler; raises NetSplitError unless it is stepped after each epoch."""
    if rate is None or rate.every != "epoch":
        why = "none was given" if rate is None else "its scheduler is stepped with every optimiser step"
        raise NetSplitError(
            f"this model has no scheduler to step ({why}): give netsplit.LearningRate(…, every='epoch')."
        )
    return rate


def require_same_rates(rates: Mapping[str, Sequence[float]]) -> None:
    """Raises NetSplitError: devices have different learning rates."""
    (first, own), *others = rates.items()
    for name, each in others:
        apart = next(((a, b) for a, b in zip(own, each, strict=False) if a != b), None)
        if apart is not None:
            raise NetSplitError(
                f"the scheduler gives {first} the learning rate {apart[0]:g}, but {name} {apart[1]:g}: "
                "compute it from the step count alone (no parameters, clock, process or random numbers), or "
                "set parallel.learning_rate in the training loop."
            )


def rates_of(given: float | Sequence[float], groups: int) -> list[float]:
    """A learning rate for each group; raises NetSplitError for a wrong number of them."""
    rates = [float(given)] * groups if isinstance(given, int | float) else [float(rate) for rate in given]
    if len(rates) != groups or not all(0 <= rate < math.inf for rate in rates):
        raise NetSplitError(
            f"learning_rate is {given}: give a number of at least 0, or one for each of {groups} groups."
        )
    return rates


def settings_of(scheduler: LRScheduler) -> dict[str, Any]:
    """The scheduler's settings in its state, without its progress."""
    parameters = inspect.signature(type(scheduler).__init__).parameters
    return {k: v for k, v in scheduler.state_dict().items() if k in parameters and k != "last_epoch"}


def constant() -> None:
    """No scheduler: the optimiser's own learning rate throughout."""


def learning_rate(given: LearningRate | SchedulerFactory | None) -> LearningRate | None:
    """A scheduler as `parallelize` takes it."""
    return given if given is None or isinstance(given, LearningRate) else LearningRate(given)


def warmup_cosine(
    optimizer: Optimizer, warmup: int, steps: int, start_factor: float = 0.01, eta_min: float = 0.0
) -> LRScheduler:
    """A linear rise over `warmup` steps, then half a cosine wave down to `eta_min` at `steps`.

    Args:
        start_factor: of the learning rate, at the first step.
    """
    if not 0 < warmup < steps:
        raise ConfigError(
            f"scheduler.warmup is {warmup} of {steps} steps: give at least 1 and less than {steps}."
        )
    rise = LinearLR(optimizer, start_factor, total_iters=warmup)
    fall = CosineAnnealingLR(optimizer, steps - warmup, eta_min)
    return SequentialLR(optimizer, [rise, fall], [warmup])
