"""What an optimiser costs per byte of parameter: bytes of training state (alpha), and seconds of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, prod
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.errors import ConfigError
from netsplit.graph.code_places import line_of, where_of
from netsplit.graph.ir import Graph
from netsplit.optim.carried import has_step_hooks, uncarried_attribute, uncarried_state
from netsplit.optim.elsewhere import check_hooks, check_keys
from netsplit.optim.learning_rate import LearningRate
from netsplit.optim.optimizers import ForModel, OptimizerFactory, ParameterGroups, make_optimizer
from netsplit.profile.measure.clock import Clock, Lap, worker_conditions

__all__ = [
    "accumulate_seconds_per_byte",
    "check_idle",
    "check_optimizer",
    "describe_optimizer",
    "optimizer_alpha",
    "state_tensors",
    "step_on",
    "step_seconds_per_byte",
    "steps_alike",
    "with_dummies",
]

DUMMY_SIZES = (7, 5, 3, 2)  # no optimiser keeps anything else of such a shape
SCRATCH_BYTES = 2**26  # gone over before a step, which finds the caches full of a backward's data
_OWN = ("state", "param_groups", "defaults")  # of every optimiser
Stepping = Callable[[torch.optim.Optimizer, Mapping[str, nn.Parameter]], Callable[[], None]]
"""Makes, of an optimiser and its parameters by name, what steps on them."""
TRIED = 12  # steps that tell whether parameters are stepped on their own
_MISSING = 3  # one in so many of them without a gradient


def optimizer_alpha(factory: OptimizerFactory) -> int:
    """Bytes of training state per byte of parameter: alpha of equation (5-18), thesis section 5.2.2.

    One for the parameter, one for its gradient, and one for each tensor of the parameter's shape that
    the optimiser keeps after a step: SGD 2, with momentum 3, Adam 4, with AMSGrad 5. Counters and
    factored moments, which do not grow with the parameter's bytes, are left out. Of groups of parameters
    the one that keeps most counts, by its largest parameter.

    Raises:
        ConfigError: the optimiser cannot take a step without a closure.
    """
    most = 0.0
    bound, chosen = with_dummies(factory)
    parameters = {name: nn.Parameter(torch.ones(bound.parameters[name][1])) for name in chosen}
    optimizer = make_optimizer(bound, parameters).optimizer
    step_on(optimizer, list(parameters.values()))
    check_keys(optimizer)
    for parameter in parameters.values():
        kept = sum(
            tensor.numel() * tensor.element_size()
            for tensor in state_tensors(optimizer.state[parameter])
            if tensor.shape == parameter.shape
        )
        most = max(most, kept / (parameter.numel() * parameter.element_size()))
    return 2 + ceil(most)


def describe_optimizer(factory: OptimizerFactory) -> str:
    """The optimiser's class and settings as far as its seconds depend on them, the same in every process.

    Of a fraction it is only whether it is 0, which leaves parts of a step out: a learning rate of 0.1 takes
    as long as one of 0.2.
    """
    bound = factory if isinstance(factory, ForModel) else _dummy_model(factory, 1)
    optimizer = make_optimizer(bound, {}).optimizer
    settings: Any = sorted((key, _kind_of(value)) for key, value in optimizer.defaults.items())
    if len(optimizer.param_groups) > 1:
        settings = [
            sorted((k, _kind_of(value)) for k, value in group.items() if k not in ("params", "param_names"))
            for group in optimizer.param_groups
        ]
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__} {settings}"


def _kind_of(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_kind_of, value))})"
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
        return "0"
    return "some" if isinstance(value, float) else repr(value)


def check_optimizer(factory: OptimizerFactory) -> None:
    """Try a factory on parameters of its own, so that a mistake shows before any worker starts.

    Args:
        factory: a `ForModel` is tried with that model's names and shapes.

    Raises:
        ConfigError: it makes no optimiser, refuses its values, has other parameters than those it is given,
            or steps on parameters in a way that depends on others, which may lie on other devices.
    """
    bound = factory if isinstance(factory, ForModel) else _dummy_model(factory, 2)
    if isinstance(bound.factory, torch.optim.Optimizer):
        kind = type(bound.factory).__name__
        raise ConfigError(
            f"optimizer is an object of {kind}, which has its parameters already, and each device makes its "
            f"own: give the class with its settings, as in functools.partial(torch.optim.{kind}, lr=1e-3)."
        )
    if not bound.parameters:
        bound = _dummy_model(bound.factory, 2)
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
    """Whether checkpoints have all of its state.

    Raises:
        ConfigError: they have not.
    """
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
    if has_step_hooks(optimizer):
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
        rate.check_switchable(_small(factory)[0])


def _small(factory: OptimizerFactory) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
    """Of one small parameter of each group, and these."""
    small, chosen = with_dummies(factory)
    own = {name: nn.Parameter(torch.ones(small.parameters[name][1])) for name in chosen}
    return make_optimizer(small, own).optimizer, list(own.values())


def _check_finite(optimizer: torch.optim.Optimizer) -> None:
    """Refuse hyperparameters, in any group, that are no finite numbers.

    Raises:
        ConfigError: it names one.
    """
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
            _give_gradients([own[each] for each in stepped])
            _stepped(optimizer)
        if bool((own[name] != 1.0).any()):
            kind = type(optimizer).__name__
            raise ConfigError(
                f"optimizer {kind} moves parameters that have no gradient, and the model's step does not use "
                f"'{name}': call requires_grad_(False) on it beforehand, or let the optimizer pass over "
                "parameters without a gradient."
            )


def _dummy_model(factory: OptimizerFactory, count: int) -> ForModel:
    kind = torch.float32, DUMMY_SIZES[:2]
    return ForModel(factory, {f"parameter{i}": kind for i in range(count)})


def with_dummies(factory: OptimizerFactory) -> tuple[ForModel, list[str]]:
    """The factory for a model in which each group's largest parameter is small, and these parameters."""
    if not isinstance(factory, ForModel) or not factory.parameters:
        dummies = _dummy_model(factory.factory if isinstance(factory, ForModel) else factory, 1)
        return dummies, list(dummies.parameters)
    shapes = {name: shape for name, (_, shape) in factory.parameters.items()}
    groups = make_optimizer(factory, {}).groups
    chosen = [max(group, key=lambda name: prod(shapes[name])) for group in groups if group]
    small = {
        name: (torch.float32, DUMMY_SIZES[: len(shapes[name])] if len(shapes[name]) != 1 else (35,))
        for name in chosen
    }
    return replace(factory, parameters={**factory.parameters, **small}), chosen


def _check_alone(factory: ForModel) -> None:
    """Whether a parameter is stepped as if it were alone, which is what it is on a device of its own.

    In every step with a gradient, and in some without.

    Raises:
        ConfigError: it is not.
    """
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
    bound = factory if isinstance(factory, ForModel) and factory.parameters else _dummy_model(factory, 2)
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
    """How far parameters go in some steps, on gradients that depend on their place in `pair` alone.

    Each has none in one of `missing` steps, where that is not 0, never two in the same step.
    """
    draws = {name: torch.Generator().manual_seed(pair.index(name)) for name in names}

    def drawn(name: str) -> Tensor:
        shape = factory.parameters[name][1]
        return torch.randn(shape, generator=draws[name], dtype=torch.float64)

    own = {name: nn.Parameter(drawn(name)) for name in names}
    before = {name: parameter.detach().clone() for name, parameter in own.items()}
    optimizer = make_optimizer(factory, own).optimizer
    take_step = partial(_stepped, optimizer) if stepping is None else stepping(optimizer, own)
    with torch.random.fork_rng(devices=[]):
        for n in range(TRIED):
            for name, parameter in own.items():
                gradient = drawn(name) * 10.0 ** pair.index(name)
                has_none = missing and n % missing == pair.index(name)
                parameter.grad = None if has_none else gradient
            take_step()
    return {name: parameter.detach() - before[name] for name, parameter in own.items()}


def step_seconds_per_byte(
    factory: OptimizerFactory,
    shapes: Sequence[tuple[int, ...]] | Mapping[str, tuple[int, ...]],
    torch_device: torch.device | str,
    *,
    repeats: int = 5,
    warmup: int = 2,
    threads: int = 1,
    at_most_bytes: int = 2**27,
) -> float:
    """Measured seconds per byte of parameter of a step and of letting the gradients go.

    Args:
        factory: makes the optimiser of given parameters.
        shapes: of the model's trainable parameters, by their names where the factory is of a `ForModel`;
            float32. Small tensors cost more per byte than large ones, so they are measured together. Where
            they have more than `at_most_bytes` in all, every n-th is taken.
        torch_device: where to run, as for `torch.device`.

    Returns:
        The median over `repeats`; 0 where there is no parameter.
    """
    named = shapes if isinstance(shapes, Mapping) else {str(i): shape for i, shape in enumerate(shapes)}
    chosen = _sampled(list(named.items()), at_most_bytes)
    if not chosen:
        return 0.0
    device = torch.device(torch_device)
    clock = Clock(device, threads)
    laps: list[Lap] = []
    with worker_conditions(device, threads):
        own = {name: nn.Parameter(torch.rand(shape, device=device)) for name, shape in chosen}
        parameters, optimizer = list(own.values()), make_optimizer(factory, own).optimizer
        scratch = torch.ones(SCRATCH_BYTES // 4, device=device)
        for _ in range(warmup + repeats):
            _give_gradients(parameters)
            scratch.mul_(1.0)
            start = clock.now()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            laps.append((start, clock.now()))
    return median(clock.seconds(laps)[warmup:]) / sum(4 * p.numel() for p in parameters)


def accumulate_seconds_per_byte(
    shapes: Sequence[tuple[int, ...]],
    torch_device: torch.device | str,
    *,
    repeats: int = 5,
    threads: int = 1,
    at_most_bytes: int = 2**27,
) -> float:
    """Measured seconds per byte of parameter of adding a gradient just made to the sum of those before it.

    Arguments as of `step_seconds_per_byte`; 0 where there is no parameter.
    """
    chosen = _sampled([("", shape) for shape in shapes], at_most_bytes)
    if not chosen:
        return 0.0
    device = torch.device(torch_device)
    clock = Clock(device, threads)
    totals = []
    with worker_conditions(device, threads):
        sums = [torch.zeros(shape, device=device) for _, shape in chosen]
        for _ in range(1 + repeats):
            laps: list[Lap] = []
            for total in sums:
                made = torch.ones_like(total)
                start = clock.now()
                total += made
                laps.append((start, clock.now()))
            totals.append(sum(clock.seconds(laps)))
    return median(totals[1:]) / sum(4 * total.numel() for total in sums)


def step_on(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor] = ()) -> None:
    """A step; these get new gradients first."""
    _give_gradients(parameters)
    _stepped(optimizer)


def _stepped(optimizer: torch.optim.Optimizer) -> None:
    try:
        optimizer.step()
    except TypeError as error:
        raise ConfigError(
            f"optimizer {type(optimizer).__name__} cannot take a step without a closure ({error}): "
            "choose one that steps on gradients alone, such as torch.optim.SGD or torch.optim.Adam."
        ) from error
    except RuntimeError as error:
        kept = [key for key, value in vars(optimizer).items() if key not in _OWN and _is_of_others(value)]
        if not kept:
            raise
        raise ConfigError(
            f"optimizer {type(optimizer).__name__} keeps tensors of all parameters in '{kept[0]}', and its "
            f"step on those of one device fails{where_of(error)} ({line_of(error)}): keep what belongs to a "
            "parameter in self.state[parameter], which is where the parameter is."
        ) from error


def _is_of_others(value: Any) -> bool:
    """Whether it has tensors of parameters that are on other devices."""
    return any(tensor.is_meta for tensor in state_tensors(value))


def _give_gradients(parameters: Sequence[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)


def state_tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from state_tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from state_tensors(value)


def _sampled(
    shapes: Sequence[tuple[str, tuple[int, ...]]], at_most_bytes: int
) -> list[tuple[str, tuple[int, ...]]]:
    total = sum(4 * prod(shape) for _, shape in shapes)
    every = max(1, ceil(total / at_most_bytes))
    return [(name, shape) for name, shape in shapes[::every] if prod(shape)]
