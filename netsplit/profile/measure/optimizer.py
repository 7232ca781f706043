"""What an optimiser costs, and whether it does on devices and on parts what it does alone: tried out.

Per byte of parameter it costs bytes of state (alpha) and of scratch; its seconds are in `clock`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from netsplit.errors import ConfigError, brief
from netsplit.graph.ir import Graph
from netsplit.optim.learning_rate import LearningRate
from netsplit.optim.optimizers import (
    ForModel,
    OptimizerFactory,
    ParameterGroups,
    check_hooks,
    check_keys,
    make_optimizer,
    uncarried_attribute,
    uncarried_state,
)
from netsplit.profile.costs import OptimizerScratch, StepScratch
from netsplit.profile.measure.memory_meter import MemoryMeter

__all__ = [
    "check_element_wise", "check_optimizer", "check_switchable", "describe_optimizer", "is_element_wise",
    "optimizer_alpha", "optimizer_scratch", "state_tensors", "steps_alike",
]  # fmt: skip

Stepping = Callable[[torch.optim.Optimizer, Mapping[str, nn.Parameter]], Callable[[], None]]
"""Makes, of an optimiser and its parameters by name, what steps on them."""
Tensors = dict[str, Tensor]

DUMMY_SIZES = (7, 5, 3, 2)  # no optimiser keeps anything else of such a shape
_SETTLED = 2  # steps after which an optimiser has all the state that it keeps
_SIDE = 48  # of a dummy: numbers that optimisers make beside are little
TRIED = 12  # steps that tell whether parameters are stepped on their own
_MISSING = 3  # one in so many of them without a gradient
_ELEMENTS = 2**18  # at most, of a parameter in parts: some treat sides of 128 and more as they do no others
_APART = 30.0  # between the scales of the two halves, which a norm over both would tell


def optimizer_alpha(factory: OptimizerFactory) -> int:
    """Bytes of training state per byte of parameter: alpha of equation (5-18), thesis section 5.2.2.

    One for the parameter, one for its gradient, and one for each tensor of its shape that the optimiser
    keeps: SGD 2, with momentum 3, Adam 4, with AMSGrad 5; of half precision with a copy and moments in
    single precision 8. The group that keeps most counts.

    Raises:
        ConfigError: the optimiser cannot take a step without a closure.
    """
    most = 0.0
    bound, chosen = _with_dummies(factory)
    kinds = {name: bound.parameters[name] for name in chosen}
    parameters = {name: nn.Parameter(torch.ones(shape, dtype=kind)) for name, (kind, shape) in kinds.items()}
    optimizer = make_optimizer(bound, parameters).optimizer
    _step_on(optimizer, list(parameters.values()))
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

    Of a fraction only whether it is 0 matters, which leaves parts of a step out.
    """
    bound = factory if isinstance(factory, ForModel) else _dummy_model(factory, 1)
    optimizer = make_optimizer(bound, {}).optimizer
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


def _dummy_model(factory: OptimizerFactory, count: int) -> ForModel:
    """The factory for a model of `count` small parameters."""
    kind = torch.float32, DUMMY_SIZES[:2]
    return ForModel(factory, {f"parameter{i}": kind for i in range(count)})


def _with_dummies(factory: OptimizerFactory) -> tuple[ForModel, list[str]]:
    """The factory for a model in which each group's largest parameter is small, and these parameters."""
    if not isinstance(factory, ForModel) or not factory.parameters:
        dummies = _dummy_model(factory.factory if isinstance(factory, ForModel) else factory, 1)
        return dummies, list(dummies.parameters)
    kinds = factory.parameters
    groups = make_optimizer(factory, {}).groups
    chosen = [max(group, key=lambda name: prod(kinds[name][1])) for group in groups if group]
    small = {
        name: (kind, DUMMY_SIZES[: len(shape)] if len(shape) != 1 else (35,))
        for name, (kind, shape) in ((name, kinds[name]) for name in chosen)
    }
    return replace(factory, parameters={**factory.parameters, **small}), chosen


def optimizer_scratch(factory: OptimizerFactory) -> OptimizerScratch:
    """Scratch of a step on a CPU, and on accelerators, where torch's own steps take all parameters at once.

    Metered on one, two and three small parameters; of several groups the one that takes most counts.

    Raises:
        ConfigError: the optimiser cannot take a step without a closure.
    """
    bound, chosen = _with_dummies(factory)
    each = [[_scratch(bound, name, together) for name in chosen] for together in (False, True)]
    return OptimizerScratch(*(max(own, key=lambda of: of.before + of.own + of.every) for own in each))


def _scratch(factory: ForModel, name: str, together: bool) -> StepScratch:
    one, two, three = (_risen(factory, name, together, count) for count in (1, 2, 3))
    every = max(three - two, 0.0)
    return StepScratch(max(one - every, 0.0), max(two - one - every, 0.0), every)


def _risen(factory: ForModel, name: str, together: bool, count: int) -> float:
    """Memory of a step on `count` equal parameters of one group, in parameters."""
    sides = (_SIDE,) * max(len(factory.parameters[name][1]), 1)
    parameters = [nn.Parameter(torch.ones(sides)) for _ in range(count)]
    optimizer = make_optimizer(factory, {name: parameters[0]}).optimizer
    (group,) = (each for each in optimizer.param_groups if each["params"])
    group["params"][:] = parameters
    if first := optimizer.state.get(parameters[0]):  # made with the optimiser, not at its first step
        optimizer.state.update({parameter: deepcopy(first) for parameter in parameters[1:]})
    one_by_one = group.get("fused") or isinstance(group.get("lr"), Tensor)  # as torch chooses by default
    if together and "foreach" in group and group["foreach"] is None and not one_by_one:
        group["foreach"] = True
    for _ in range(_SETTLED):
        _step_on(optimizer, parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    with MemoryMeter(torch.device("cpu"), _held(optimizer, parameters)) as meter:
        meter.restart()
        _step_on(optimizer)
        return round(meter.risen_bytes / (parameters[0].numel() * parameters[0].element_size()), 2)


def _held(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> Iterator[Tensor]:
    for parameter in parameters:
        assert parameter.grad is not None
        yield from (parameter.data, parameter.grad)
        yield from state_tensors(optimizer.state[parameter])


def _step_on(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor] = ()) -> None:
    """Take a step, after giving `parameters` new gradients."""
    _give_gradients(parameters)
    try:
        optimizer.step()
    except TypeError as error:
        raise ConfigError(
            f"optimizer {type(optimizer).__name__} cannot take a step without a closure ({error}): "
            "choose one that steps on gradients alone, such as torch.optim.SGD or torch.optim.Adam."
        ) from error


def _give_gradients(parameters: Sequence[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)


def state_tensors(state: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]


def check_optimizer(factory: OptimizerFactory) -> None:
    """Try a factory on parameters of its own, so that a mistake shows before any worker starts.

    Args:
        factory: a `ForModel` is tried with that model's names and shapes.

    Raises:
        ConfigError: it makes no optimiser, has other parameters than it is given, moves those without a
            gradient, or steps on a parameter in a way that depends on others, which may be on other devices.
    """
    bound = factory if isinstance(factory, ForModel) else _dummy_model(factory, 2)
    if isinstance(bound.factory, torch.optim.Optimizer) or not callable(bound.factory):
        raise ConfigError(
            f"optimizer is {brief(bound.factory)}: give a function of parameters, which each device calls, "
            "such as functools.partial(torch.optim.Adam, lr=1e-3)."
        )
    if not bound.parameters:
        bound = _dummy_model(bound.factory, 2)
    try:
        if isinstance(bound.factory, ParameterGroups) and bound is factory:
            bound.factory.check_names(bound.parameters)
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
            f"optimizer cannot be made from {given} ({reason}): give a function of parameters, such as "
            "functools.partial(torch.optim.Adam, lr=1e-3)."
        ) from error


def _check_carried(factory: ForModel) -> None:
    """Whether checkpoints have all of its state."""
    optimizer, own = _small(factory)
    for _ in range(2):
        _step_on(optimizer, own)
    if (reason := uncarried_state(optimizer)) is not None:
        raise ConfigError(
            f"optimizer {type(optimizer).__name__} {reason} in a checkpoint: name it otherwise."
        )


def check_switchable(factory: OptimizerFactory, rate: LearningRate | None) -> None:
    """Try whether all state of an optimiser and its scheduler moves to another plan's devices.

    Raises:
        ConfigError: it does not.
    """
    optimizer, own = _small(factory)
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise ConfigError(
            f"optimizer {type(optimizer).__name__} has step hooks, whose state does not move when the plan "
            "changes: do their work in its step()."
        )
    _step_on(optimizer, own)
    name = uncarried_attribute(optimizer, lambda: _step_on(optimizer, own))
    if name is not None:
        raise ConfigError(
            f"optimizer {type(optimizer).__name__} may keep state in '{name}', which does not move when the "
            "plan changes: keep only numbers there, and state of a parameter in self.state[parameter]."
        )
    if rate is not None:
        rate.check_switchable(_small(factory)[0], _small(factory)[0])


def _small(factory: OptimizerFactory) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
    """An optimiser of one small parameter of each group, and these."""
    small, chosen = _with_dummies(factory)
    own = {name: nn.Parameter(torch.ones(small.parameters[name][1])) for name in chosen}
    return make_optimizer(small, own).optimizer, list(own.values())


def _check_alone(factory: ForModel) -> None:
    """Whether a parameter is stepped as if alone, as on a device of its own; each has a gradient in some of
    the steps."""
    kind = type(make_optimizer(factory, {}).optimizer).__name__
    for pair in _pairs(factory):
        for missing in (0, _MISSING):
            start, gradients = _drawn(factory, pair, missing)
            together = _moved(factory, start, gradients)
            alone = {k: _moved(factory, {k: start[k]}, gradients)[k] for k in pair}
            if not all(_near(alone[k], together[k], 1e-3) for k in pair):
                raise ConfigError(
                    f"optimizer {kind} updates a parameter differently when others, maybe on other devices, "
                    "are there or had gradients in a step where it had none: choose one that updates each on "
                    "its own, such as torch.optim.AdamW, and counts steps in self.state[parameter]."
                )
        without = [{k: each[k] for k in pair[1:] if k in each} for each in gradients]
        if bool(_moved(factory, start, without)[pair[0]].any()):
            raise ConfigError(
                f"optimizer {kind} updates parameters that have no gradient, which may be on no device: "
                "make it skip parameters without a gradient."
            )


def _near(one: Tensor, other: Tensor, part: float) -> bool:
    near = part * float(other.abs().max())
    return torch.allclose(one, other, rtol=part, atol=near, equal_nan=True)


def _pairs(factory: ForModel) -> list[list[str]]:
    """The two smallest parameters that have elements; if in two groups, also two of one group."""
    pair, groups = _smallest(factory), make_optimizer(factory, {}).groups
    if any(set(pair) <= set(group) for group in groups):
        return [pair]
    inner = (_smallest(factory, group) for group in groups)
    return [pair, *next(([each] for each in inner if len(each) == 2), [])]


def steps_alike(factory: OptimizerFactory, stepping: Stepping) -> bool:
    """Whether parameters come out the same bit for bit if `stepping` takes the steps."""
    bound = factory if isinstance(factory, ForModel) and factory.parameters else _dummy_model(factory, 2)
    start, gradients = _drawn(bound, _smallest(bound))
    plain = _moved(bound, start, gradients)
    other = _moved(bound, start, gradients, stepping=stepping)
    return all(torch.allclose(plain[k], other[k], rtol=0, atol=0, equal_nan=True) for k in start)


def _smallest(factory: ForModel, names: Iterable[str] | None = None) -> list[str]:
    """Two parameters, of these, that have elements."""
    shapes = {name: factory.parameters[name][1] for name in (factory.parameters if names is None else names)}
    sizes = {name: prod(shape) for name, shape in shapes.items() if prod(shape)}
    return sorted(sizes, key=lambda name: sizes[name])[:2]


def check_element_wise(factory: OptimizerFactory | None, graph: Graph) -> None:
    """Try an optimiser on a whole and on its halves, for parameters that the graph has in parts.

    Of every group one parameter of each shape is tried, of smaller sizes where it is large.

    Raises:
        ConfigError: it is not element-wise.
    """
    cut: dict[str, set[int]] = {}  # parameter -> the dimensions along which it is cut
    for init in graph.initializers.values():
        if init.region is not None and init.requires_grad:
            sizes = zip(init.shape, init.region.shape, strict=True)
            cut.setdefault(init.region.whole, set()).update(
                d for d, (own, whole) in enumerate(sizes) if own < whole
            )
    _check_along(factory, graph, cut)


def is_element_wise(factory: OptimizerFactory | None, graph: Graph, names: Iterable[str]) -> bool:
    """Whether it may step on rows of these parameters as on the whole; tried as in `check_element_wise`."""
    wholes = [graph.initializers[k].whole for k in names]
    try:
        _check_along(factory, graph, {own.name: {0} for own in wholes if own.shape and own.shape[0] > 1})
    except ConfigError:
        return False
    return True


def _check_along(factory: OptimizerFactory | None, graph: Graph, cut: Mapping[str, set[int]]) -> None:
    if factory is None or not cut:
        return
    kinds = {k: (torch.float64, init.shape) for k, init in graph.wholes.items() if init.requires_grad}
    bound = factory if isinstance(factory, ForModel) else ForModel(factory, kinds)
    group_of = {k: n for n, own in enumerate(make_optimizer(bound, {}).groups) for k in own}
    tried: dict[tuple[int, tuple[int, ...], int], str] = {}
    for name, dims in cut.items():
        for dim in sorted(dims):
            tried.setdefault((group_of.get(name, 0), _smaller(kinds[name][1], dim), dim), name)
    for (_, shape, dim), name in tried.items():
        _check_halves(bound, name, shape, dim)


def _smaller(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """A shape of few elements, with at least two along the dimension that is cut."""
    sizes = list(shape)
    while prod(sizes) > _ELEMENTS and max(sizes) > 2:
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        sizes[largest] = max(2, sizes[largest] // 2)
    return tuple(sizes)


def _check_halves(factory: ForModel, name: str, shape: tuple[int, ...], dim: int) -> None:
    bound = replace(factory, parameters={**factory.parameters, name: (torch.float64, shape)})
    start, gradients = _drawn(bound, [name])
    first = shape[dim] // 2
    for tensor in (start[name], *(each[name] for each in gradients)):
        tensor.narrow(dim, first, shape[dim] - first).mul_(_APART)
    whole = _moved(bound, start, gradients)[name]
    names = [f"{name}[0]", f"{name}[1]"]

    def halves(tensors: Tensors) -> Tensors:
        return dict(zip(names, tensors[name].split([first, shape[dim] - first], dim), strict=True))

    parts = _moved(bound, halves(start), list(map(halves, gradients)), dict.fromkeys(names, name))
    if not _near(torch.cat([parts[k] for k in names], dim), whole, 1e-6):
        kind = type(make_optimizer(factory, {}).optimizer).__name__
        raise ConfigError(
            f"optimizer {kind} updates parts of '{name}' differently from the whole, and it is split over "
            "several devices: choose one that updates each element on its own, such as torch.optim.AdamW, "
            "or a method that leaves operators whole."
        )


def _drawn(factory: ForModel, names: Sequence[str], missing: int = 0) -> tuple[Tensors, list[Tensors]]:
    """Where parameters start, and gradients of some steps. With `missing`, each parameter has none in one of
    so many steps, never two in the same step."""
    start: Tensors = {}
    gradients: list[Tensors] = [{} for _ in range(TRIED)]
    for place, name in enumerate(names):
        draw, shape = torch.Generator().manual_seed(place), factory.parameters[name][1]
        start[name] = torch.randn(shape, generator=draw, dtype=torch.float64)
        for n, each in enumerate(gradients):
            gradient = torch.randn(shape, generator=draw, dtype=torch.float64) * 10.0**place
            if not missing or n % missing != place:
                each[name] = gradient
    return start, gradients


def _moved(
    factory: ForModel,
    start: Tensors,
    gradients: Sequence[Tensors],
    parts: Mapping[str, str] | None = None,
    stepping: Stepping | None = None,
) -> Tensors:
    """How far parameters go, with gradients where there are any; `parts` as of `make_optimizer`."""
    own = {k: nn.Parameter(tensor.clone()) for k, tensor in start.items()}
    optimizer = make_optimizer(factory, own, parts or {}).optimizer
    take_step = partial(_step_on, optimizer) if stepping is None else stepping(optimizer, own)
    with torch.random.fork_rng(devices=[]):
        for each in gradients:
            for k, parameter in own.items():
                parameter.grad = each[k].clone() if k in each else None
            take_step()
    return {k: parameter.detach() - start[k] for k, parameter in own.items()}
