"""Learning rates that change while training goes on: torch's schedulers, the same on every device."""

from __future__ import annotations

import inspect
import math
import os
import pickle
import random
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal, NoReturn

import cloudpickle
import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, ReduceLROnPlateau, SequentialLR

from netsplit.errors import ConfigError, NetSplitError
from netsplit.optim.carried import uncarried_in_scheduler
from netsplit.optim.factories import called, check_settings, where_of
from netsplit.optim.optimizers import ForModel, NamedOptimizer, make_optimizer

__all__ = ["LearningRate", "SchedulerFactory", "constant", "warmup_cosine"]

SchedulerFactory = Callable[[Optimizer], LRScheduler]

ALL = "all"
_TRIED, _FURTHER = 3, 12  # steps before training; one that ends in between may be meant for so few
_OTHER_PROCESS = threading.Lock()


class LearningRate:
    """How an optimiser's learning rate changes; with it, whatever the scheduler changes besides (momentum).

    ``LearningRate(torch.optim.lr_scheduler.CosineAnnealingLR, every="epoch", T_max=20)``

    A scheduler is made on every device, of an optimiser with the same groups, and stepped alike on all.

    Args:
        scheduler: a class of schedulers, or its dotted name, or a function of an optimiser.
        every: what it is stepped after. "step": each optimiser step, as a plain loop that calls
            ``scheduler.step()`` after ``optimizer.step()``, also where a loss scale skipped that; under a
            schedule whose devices step within the batch, each batch. "epoch": each epoch of
            ``netsplit.training.epochs.fit``, or each call of `ParallelModel.step_scheduler`; only so can
            ``ReduceLROnPlateau`` have the loss it wants, the epoch's mean training loss.
        settings: of the scheduler. "all" stands for how often a training whose length is known steps it, as
            that of an experiment is.

    Raises:
        ConfigError: a setting that the scheduler does not have.
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
        """The same with numbers for "all"."""
        count = epochs * (steps_per_epoch if self.every == "step" else 1)
        settings = {key: count if value == ALL else value for key, value in self.settings.items()}
        return LearningRate(self.scheduler, self.every, **settings)

    def scheduler_for(self, optimizer: Optimizer) -> LRScheduler:
        """The scheduler of one device's optimiser.

        Raises:
            ConfigError: a setting is "all", and nobody said how many.
        """
        for key, value in self.settings.items():
            if value == ALL:
                raise ConfigError(f"scheduler.{key} is 'all', of a training of unknown length: say how many.")
        return self.scheduler(optimizer, **self.settings)

    def copied(self) -> LearningRate:
        """A copy as a device has it: trying it leaves these functions, which may count, as they were.

        Raises:
            ConfigError: it has what cannot be copied.
        """
        try:
            copy: LearningRate = cloudpickle.loads(cloudpickle.dumps(self))
        except Exception as error:  # of what a function may have at hand
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"scheduler has what cannot be sent to a worker ({reason}): let it go by numbers and "
                "functions."
            ) from error
        return copy

    def check(self, optimizer: ForModel) -> None:
        """Try it on an optimiser without values, before any worker starts.

        Raises:
            ConfigError: it makes no scheduler, or one that is of another optimiser, cannot be stepped, or not
                saved, or goes by values of parameters, of which every device has others.
        """
        with _generators_kept():
            self._check(optimizer)

    def _check(self, optimizer: ForModel) -> None:
        try:
            own = make_optimizer(optimizer, {})
            guard(own, optimizer)
            scheduler = self.copied().scheduler_for(own.optimizer)
            self._check_type(scheduler, own.optimizer)
            for _ in range(_TRIED):
                step(scheduler, 1.0)
            if not all(math.isfinite(group["lr"]) for group in own.optimizer.param_groups):
                raise ConfigError(
                    f"scheduler makes a learning rate that is no finite number within {_TRIED} steps: "
                    f"correct the settings of {self!r}."
                )
            pickle.dumps(scheduler.state_dict())
            with suppress(ConfigError):
                for _ in range(_TRIED, _FURTHER):
                    step(scheduler, 1.0)
            self._check_alike(optimizer)
        except ReadsValues as error:
            raise ConfigError(
                f"scheduler goes by {error}{where_of(error)}, and every device has only its own: let it go "
                "by the number of steps, or set parallel.learning_rate in the training loop."
            ) from None
        except ConfigError:
            raise
        except Exception as error:  # of a function that may do anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"scheduler cannot be made of {self!r} ({reason}): give a function of an optimiser, such as "
                "functools.partial(torch.optim.lr_scheduler.StepLR, step_size=30)."
            ) from error

    def check_switchable(self, optimizer: Optimizer) -> None:
        """Whether a scheduler that another plan's devices make goes on where this one stands.

        Raises:
            ConfigError: `state_dict`, which moves, lacks what changes with its steps.
        """
        scheduler = self.copied().scheduler_for(optimizer)
        name = uncarried_in_scheduler(scheduler, partial(_steps_on, scheduler))
        if name is not None:
            raise ConfigError(
                f"scheduler {type(scheduler).__name__} keeps what changes with its steps in '{name}', and "
                "its state_dict() has not that, so it would not move when the plan changes: let it go by the "
                "number of steps alone, or keep that where state_dict() has it."
            )

    def check_steps(self, optimizer: ForModel, steps: int) -> None:
        """Refuse a scheduler that has an end before the training has.

        Args:
            steps: how often it will be stepped.

        Raises:
            ConfigError: only ``OneCycleLR`` has such an end.
        """
        scheduler = self.copied().scheduler_for(make_optimizer(optimizer, {}).optimizer)
        last = getattr(scheduler, "total_steps", None)
        if isinstance(last, int) and last < steps:
            raise ConfigError(
                f"scheduler {type(scheduler).__name__} ends after {last} steps, and the training has {steps}"
                f": give total_steps={steps}, or more."
            )

    def check_loss(self, loss: float | None) -> None:
        """Refuse to step ``ReduceLROnPlateau`` without a loss.

        Raises:
            ConfigError: there is none.
        """
        if loss is None and self.scheduler is ReduceLROnPlateau:
            raise ConfigError("ReduceLROnPlateau goes by a loss: give it to step_scheduler.")

    def _check_alike(self, optimizer: ForModel) -> None:
        """Whether devices have the same rates, each with a copy of this, random numbers of its own and
        another process."""
        (first, drew), (second, _) = (_settings_over_steps(self.copied(), optimizer, seed) for seed in (1, 2))
        differs = next((k for a, b in zip(first, second, strict=False) for k in a if a[k] != b[k]), None)
        if differs is not None:
            raise ConfigError(
                f"scheduler gives another {differs.rpartition('.')[2]} each time it is stepped from its "
                "beginning, as one that draws random numbers, reads a clock, goes by the process or counts "
                "in a module does, so that each device has its own: let it go by the number of steps (a "
                "torch.Generator of its own draws alike)."
            )
        if drew:
            raise ConfigError(
                f"scheduler draws random numbers ({drew}), of which each device has others: let it go by the "
                "number of steps (a torch.Generator of its own draws alike)."
            )

    def _check_type(self, scheduler: Any, optimizer: Optimizer) -> None:
        if not isinstance(scheduler, LRScheduler):
            raise ConfigError(
                f"scheduler makes a {type(scheduler).__name__}, which is no torch.optim.lr_scheduler."
                "LRScheduler: give a function of an optimiser that makes one."
            )
        for each in (scheduler, *getattr(scheduler, "_schedulers", ())):
            if each.optimizer is not optimizer:
                raise ConfigError(
                    f"scheduler {type(each).__name__} is of another optimiser than the one it was given, "
                    "which nothing steps: make it of that, as in lambda optimizer: StepLR(optimizer, 30)."
                )
        if isinstance(scheduler, ReduceLROnPlateau) and self.every == "step":
            raise ConfigError(
                "scheduler ReduceLROnPlateau goes by the loss of an epoch: give "
                "netsplit.LearningRate(ReduceLROnPlateau, every='epoch')."
            )


def _settings_over_steps(
    rate: LearningRate, optimizer: ForModel, seed: int
) -> tuple[list[dict[str, str]], str]:
    """What groups have before every step, by number and name, where random numbers begin with this seed, and
    the process has it for a number; and whose random numbers were drawn, "" for none."""
    over_steps: list[dict[str, str]] = []
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
    own = make_optimizer(optimizer, {}).optimizer
    began = _generators()
    with _as_process(seed), suppress(Exception):  # which only such a process has: `_check` saw the others
        scheduler = rate.scheduler_for(own)
        while len(over_steps) < _FURTHER:
            over_steps.append(
                {
                    f"{i}.{k}": repr(v)
                    for i, each in enumerate(own.param_groups)
                    for k, v in each.items()
                    if k != "params"
                }
            )
            step(scheduler, 1.0)
    after = _generators()
    return over_steps, next((name for name in began if began[name] != after[name]), "")


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Leaves the generators that a function may draw from where they stand."""
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextmanager
def _as_process(number: int) -> Iterator[None]:
    """This thread sees another process; the others, which may watch workers, see their own."""
    with _OTHER_PROCESS:
        thread, kept = threading.get_ident(), (os.getpid, os.getppid)

        def disguised(real: Callable[[], int]) -> Callable[[], int]:
            return lambda: number if threading.get_ident() == thread else real()

        os.getpid, os.getppid = map(disguised, kept)
        try:
            yield
        finally:
            os.getpid, os.getppid = kept


def _generators() -> dict[str, bytes]:
    """The states of the generators that a function may draw from."""
    return {
        "random": pickle.dumps(random.getstate()),
        "numpy.random": pickle.dumps(np.random.get_state(legacy=False)),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def _steps_on(scheduler: LRScheduler) -> None:
    for _ in range(_TRIED):
        step(scheduler, 1.0)


def step(scheduler: LRScheduler, loss: float | None) -> None:
    """One step; `loss` is for schedulers that go by it.

    Raises:
        ConfigError: the scheduler is at its end, or wants a loss and there is none.
    """
    with warnings.catch_warnings():
        # Where a device has nothing to train, or a loss scale skips a step, the optimiser has not stepped.
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        try:
            if isinstance(scheduler, ReduceLROnPlateau):
                if loss is None:
                    raise ConfigError("ReduceLROnPlateau goes by a loss: give it to step_scheduler.")
                scheduler.step(loss)
            else:
                scheduler.step()
        except ConfigError:
            raise
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"scheduler {type(scheduler).__name__} cannot go on: {reason}") from error


def every_epoch(rate: LearningRate | None) -> LearningRate:
    """One that whoever trains steps after each epoch.

    Raises:
        NetSplitError: there is none, or it is stepped with every optimiser step.
    """
    if rate is None or rate.every != "epoch":
        why = "none was given" if rate is None else "its scheduler is stepped with every optimiser step"
        raise NetSplitError(
            f"this model has no scheduler to step ({why}): give netsplit.LearningRate(…, every='epoch')."
        )
    return rate


def require_same_rates(rates: Mapping[str, Sequence[float]]) -> None:
    """Refuse to go on where devices have unlike rates.

    Args:
        rates: of the groups, by device.

    Raises:
        NetSplitError: it names two devices.
    """
    (first, own), *others = rates.items()
    for name, each in others:
        apart = next(((a, b) for a, b in zip(own, each, strict=False) if a != b), None)
        if apart is not None:
            raise NetSplitError(
                f"the scheduler gives {first} the learning rate {apart[0]:g} and {name} {apart[1]:g}, as one "
                "does that goes by a clock, the process, the environment or random numbers: let it go by the "
                "number of steps, or set parallel.learning_rate in the training loop."
            )


def rates_of(given: float | Sequence[float], groups: int) -> list[float]:
    """A learning rate for each of so many groups, from one for all or one for each.

    Raises:
        NetSplitError: numbers below 0, or not as many as groups.
    """
    rates = [float(given)] * groups if isinstance(given, int | float) else [float(rate) for rate in given]
    if len(rates) != groups or not all(0 <= rate < math.inf for rate in rates):
        raise NetSplitError(f"learning_rate is {given}: give a number of at least 0, or {groups} of them.")
    return rates


def settings_of(scheduler: LRScheduler) -> dict[str, Any]:
    """What the scheduler was made with, of what its state has; not where it stands."""
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
            f"scheduler.warmup is {warmup} of {steps} steps: give at least 1 and fewer than all."
        )
    rise = LinearLR(optimizer, start_factor, total_iters=warmup)
    fall = CosineAnnealingLR(optimizer, steps - warmup, eta_min)
    return SequentialLR(optimizer, [rise, fall], [warmup])


_KINDS = {"shape", "dtype", "device", "requires_grad", "ndim", "layout", "is_leaf", "is_cuda", "is_meta"}
_SIZES = {"size", "dim", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "__hash__"}


class ReadsValues(Exception):
    """What was read."""


def guard(named: NamedOptimizer, model: ForModel) -> None:
    """Fill an optimiser's groups, and its state, with what raises `ReadsValues` when it is read."""
    for group, names in zip(named.optimizer.param_groups, named.groups, strict=True):
        group["params"] = [_guarded(*model.parameters[name]) for name in names]
    named.optimizer.state = _RefusingState(dict)


class _Guarded(nn.Parameter):
    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        of_kind = func.__name__ == "__get__" and getattr(func.__self__, "__name__", "") in _KINDS  # type: ignore[attr-defined]
        if not of_kind and func.__name__ not in _SIZES:
            raise ReadsValues("values of parameters")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def _guarded(dtype: torch.dtype, shape: tuple[int, ...]) -> nn.Parameter:
    return _Guarded(torch.empty(shape, dtype=dtype, device="meta"))


class _RefusingState(defaultdict[Any, Any]):
    def _refuse(self, *_: Any) -> NoReturn:
        raise ReadsValues("the optimiser's state")

    __getitem__ = __iter__ = get = values = items = keys = _refuse
