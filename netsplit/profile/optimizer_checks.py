"""Whether an optimiser does on devices what it does in plain PyTorch: found by trying it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from netsplit.errors import ConfigError, brief
from netsplit.graph.ir import Graph
from netsplit.optim.learning_rate import LearningRate
from netsplit.optim.optimizers import (
    ForModel,
    OptimizerFactory,
    ParameterGroups,
    check_hooks,
    make_optimizer,
    uncarried_attribute,
    uncarried_state,
)
from netsplit.profile.measure.optimizer import dummy_model, optimizer_alpha, step_on, with_dummies

__all__ = ["check_idle", "check_optimizer", "check_switchable", "steps_alike"]

Stepping = Callable[[torch.optim.Optimizer, Mapping[str, nn.Parameter]], Callable[[], None]]
"""Makes, of an optimiser and its parameters by name, what steps on them."""
TRIED = 12  # steps that tell whether parameters are stepped on their own
_MISSING = 3  # one in so many of them without a gradient


def check_optimizer(factory: OptimizerFactory) -> None:
    """Try a factory on parameters of its own, so that a mistake shows before any worker starts.

    Args:
        factory: a `ForModel` is tried with that model's names and shapes.

    Raises:
        ConfigError: it makes no optimiser, refuses its values, has other parameters than those it is given,
            or steps on parameters in a way that depends on others, which may lie on other devices.
    """
    bound = factory if isinstance(factory, ForModel) else dummy_model(factory, 2)
    if isinstance(bound.factory, torch.optim.Optimizer):
        kind = type(bound.factory).__name__
        raise ConfigError(
            f"optimizer is an object of {kind}, which has its parameters already, and each device makes its "
            f"own: give the class with its settings, as in functools.partial(torch.optim.{kind}, lr=1e-3)."
        )
    if not callable(bound.factory):
        raise ConfigError(
            f"optimizer is {brief(bound.factory)}: give a function of parameters, such as "
            "functools.partial(torch.optim.Adam, lr=1e-3)."
        )
    if not bound.parameters:
        bound = dummy_model(bound.factory, 2)
    try:
        if isinstance(bound.factory, ParameterGroups) and bound is factory:
            bound.factory.check_names(bound.parameters)
        _check_finite(make_optimizer(bound, {}).optimizer)
        check_hooks()
        optimizer_alpha(bound)
        _check_carried(bound)
        _check_alone(bound)
    except ConfigError:
        raise
    except Exception as error:  # of a function that may do anything
        reason = " ".join(str(error).split()) or type(error).__name__
        given = " ".join(repr(bound.factory).split())
        raise ConfigError(
            f"optimizer cannot be made of {given} ({reason}): give a function of parameters, "
            "such as functools.partial(torch.optim.Adam, lr=1e-3)."
        ) from error


def _check_carried(factory: ForModel) -> None:
    """Whether checkpoints have all of its state."""
    optimizer, own = _small(factory)
    for _ in range(2):
        step_on(optimizer, own)
    if (reason := uncarried_state(optimizer)) is not None:
        raise ConfigError(
            f"optimizer {type(optimizer).__name__} {reason} in a checkpoint: name it otherwise."
        )


def check_switchable(factory: OptimizerFactory, rate: LearningRate | None) -> None:
    """Whether another plan's devices get all that it keeps, and its scheduler.

    Raises:
        ConfigError: they do not.
    """
    optimizer, own = _small(factory)
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise ConfigError(
            f"optimizer {type(optimizer).__name__} has step hooks, and what these keep does not move when "
            "the plan changes: do in its step() what they do."
        )
    step_on(optimizer, own)
    name = uncarried_attribute(optimizer, lambda: step_on(optimizer, own))
    if name is not None:
        raise ConfigError(
            f"optimizer {type(optimizer).__name__} keeps what changes with its steps in '{name}', or may, "
            "and that does not move when the plan changes: keep numbers there, or what is of a parameter "
            "in self.state[parameter]."
        )
    if rate is not None:
        rate.check_switchable(_small(factory)[0], _small(factory)[0])


def _small(factory: OptimizerFactory) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
    """An optimiser of one small parameter of each group, and these."""
    small, chosen = with_dummies(factory)
    own = {name: nn.Parameter(torch.ones(small.parameters[name][1])) for name in chosen}
    return make_optimizer(small, own).optimizer, list(own.values())


def _check_finite(optimizer: torch.optim.Optimizer) -> None:
    """Refuse hyperparameters, in any group, that are no finite numbers."""
    for group in optimizer.param_groups:
        for key, value in group.items():
            if key in ("params", "param_names"):
                continue
            for each in value if isinstance(value, tuple | list) else (value,):
                if isinstance(each, float | Tensor) and not torch.isfinite(torch.as_tensor(each)).all():
                    raise ConfigError(f"optimizer.{key} is {value}: give a finite number.")


def check_idle(factory: ForModel, graph: Graph) -> None:
    """Refuse an optimiser that moves parameters without a gradient, where the model has such: no device does.

    Raises:
        ConfigError: it names one.
    """
    used = {name for init in graph.initializers.values() for name in (init.name, *init.aliases)}
    sizes = {name: prod(shape) for name, (_, shape) in factory.parameters.items() if prod(shape)}
    idle = sorted(sizes.keys() - used, key=lambda name: sizes[name])[:1]
    for name in idle:
        stepped = sorted(sizes.keys() & used, key=lambda each: sizes[each])[:1]
        own = {each: nn.Parameter(torch.ones(factory.parameters[each][1])) for each in (name, *stepped)}
        optimizer = make_optimizer(factory, own).optimizer
        for _ in range(TRIED):
            step_on(optimizer, [own[each] for each in stepped])
        if bool((own[name] != 1.0).any()):
            kind = type(optimizer).__name__
            raise ConfigError(
                f"optimizer {kind} moves parameters that have no gradient, and the model's step does not use "
                f"'{name}': call requires_grad_(False) on it beforehand, or let the optimizer pass over "
                "parameters without a gradient."
            )


def _check_alone(factory: ForModel) -> None:
    """Whether a parameter is stepped as if it were alone, which is what it is on a device of its own. In
    every step with a gradient, and in some without."""
    kind = type(make_optimizer(factory, {}).optimizer).__name__
    for pair in _pairs(factory):
        _require_alike(factory, pair, 0, (
            f"optimizer {kind} steps on a parameter otherwise when others are there, which may be on other "
            "devices: choose one that treats each parameter by itself, such as torch.optim.AdamW (clip_norm "
            "cuts the norm over all devices)."
        ))  # fmt: skip
        try:
            _require_alike(factory, pair, _MISSING, (
                f"optimizer {kind} steps on a parameter otherwise when others, maybe on other devices, had "
                "gradients in a step in which it had none: let what it counts, in groups or attributes, not "
                "go by gradients, or keep it in self.state[parameter]."
            ))  # fmt: skip
        except (RuntimeError, IndexError) as error:
            raise ConfigError(
                f"optimizer {kind} cannot step where no parameter has a gradient ({error}), as may be so on "
                "a device: let it pass over parameters without one."
            ) from error


def _require_alike(factory: ForModel, pair: Sequence[str], missing: int, otherwise: str) -> None:
    together = _moved(factory, pair, pair, missing=missing)
    for name in pair:
        alone = _moved(factory, pair, [name], missing=missing)[name]
        near = 1e-3 * float(together[name].abs().max())
        if not torch.allclose(alone, together[name], rtol=1e-3, atol=near, equal_nan=True):
            raise ConfigError(otherwise)


def _pairs(factory: ForModel) -> list[list[str]]:
    """The two smallest parameters that have elements, and where these are in two groups, two of one group."""
    pair, groups = _smallest(factory), make_optimizer(factory, {}).groups
    if any(set(pair) <= set(group) for group in groups):
        return [pair]
    inner = (_smallest(factory, group) for group in groups)
    return [pair, *next(([each] for each in inner if len(each) == 2), [])]


def steps_alike(factory: OptimizerFactory, stepping: Stepping) -> bool:
    """Whether parameters come out the same bit for bit where `stepping` takes the steps.

    Args:
        stepping: of an optimiser and its parameters by name, what steps on them.
    """
    bound = factory if isinstance(factory, ForModel) and factory.parameters else dummy_model(factory, 2)
    pair = _smallest(bound)
    plain, other = _moved(bound, pair, pair), _moved(bound, pair, pair, stepping)
    return all(torch.allclose(plain[k], other[k], rtol=0, atol=0, equal_nan=True) for k in pair)


def _smallest(factory: ForModel, names: Iterable[str] | None = None) -> list[str]:
    """Two parameters, of these, that have elements."""
    shapes = {name: factory.parameters[name][1] for name in (factory.parameters if names is None else names)}
    sizes = {name: prod(shape) for name, shape in shapes.items() if prod(shape)}
    return sorted(sizes, key=lambda name: sizes[name])[:2]


def _moved(
    factory: ForModel,
    pair: Sequence[str],
    names: Sequence[str],
    stepping: Stepping | None = None,
    missing: int = 0,
) -> dict[str, Tensor]:
    """How far parameters go in some steps, on gradients that depend on their place in `pair` alone. Each has
    none in one of `missing` steps, where that is not 0, never two in the same step."""
    draws = {name: torch.Generator().manual_seed(pair.index(name)) for name in names}

    def drawn(name: str) -> Tensor:
        shape = factory.parameters[name][1]
        return torch.randn(shape, generator=draws[name], dtype=torch.float64)

    own = {name: nn.Parameter(drawn(name)) for name in names}
    before = {name: parameter.detach().clone() for name, parameter in own.items()}
    optimizer = make_optimizer(factory, own).optimizer
    take_step = partial(step_on, optimizer) if stepping is None else stepping(optimizer, own)
    with torch.random.fork_rng(devices=[]):
        for n in range(TRIED):
            for name, parameter in own.items():
                gradient = drawn(name) * 10.0 ** pair.index(name)
                has_none = missing and n % missing == pair.index(name)
                parameter.grad = None if has_none else gradient
            take_step()
    return {name: parameter.detach() - before[name] for name, parameter in own.items()}
