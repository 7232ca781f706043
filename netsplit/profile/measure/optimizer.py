"""What an optimiser costs per byte of parameter: bytes of state (alpha) and of scratch, seconds of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from math import ceil, prod
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from netsplit.errors import ConfigError
from netsplit.optim.optimizers import ForModel, OptimizerFactory, check_keys, make_optimizer
from netsplit.profile.costs import OptimizerScratch, StepScratch
from netsplit.profile.measure.clock import Clock, Lap, worker_conditions
from netsplit.profile.measure.memory_meter import MemoryMeter

__all__ = [
    "accumulate_seconds_per_byte",
    "describe_optimizer",
    "dummy_model",
    "optimizer_alpha",
    "optimizer_scratch",
    "state_tensors",
    "step_on",
    "step_seconds_per_byte",
    "with_dummies",
]

DUMMY_SIZES = (7, 5, 3, 2)  # no optimiser keeps anything else of such a shape
SCRATCH_BYTES = 2**26  # gone over before a step, which finds the caches full of a backward's data
REPEATS, WARMUP = 5, 2  # steps, and those before them that do not count
MOST_BYTES = 2**27  # of parameters that are stepped on
_SETTLED = 2  # steps after which an optimiser has all the state that it keeps
_SIDE = 48  # of a dummy: numbers that optimisers make beside are little


def optimizer_alpha(factory: OptimizerFactory) -> int:
    """Bytes of training state per byte of parameter: alpha of equation (5-18), thesis section 5.2.2.

    One for the parameter, one for its gradient, and one for each tensor of its shape that the optimiser
    keeps: SGD 2, with momentum 3, Adam 4, with AMSGrad 5; of half precision with a copy and moments in
    single precision 8. The group that keeps most counts.

    Raises:
        ConfigError: the optimiser cannot take a step without a closure.
    """
    most = 0.0
    bound, chosen = with_dummies(factory)
    kinds = {name: bound.parameters[name] for name in chosen}
    parameters = {name: nn.Parameter(torch.ones(shape, dtype=kind)) for name, (kind, shape) in kinds.items()}
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

    Of a fraction only whether it is 0 matters, which leaves parts of a step out.
    """
    bound = factory if isinstance(factory, ForModel) else dummy_model(factory, 1)
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


def dummy_model(factory: OptimizerFactory, count: int) -> ForModel:
    """The factory for a model of `count` small parameters."""
    kind = torch.float32, DUMMY_SIZES[:2]
    return ForModel(factory, {f"parameter{i}": kind for i in range(count)})


def with_dummies(factory: OptimizerFactory) -> tuple[ForModel, list[str]]:
    """The factory for a model in which each group's largest parameter is small, and these parameters."""
    if not isinstance(factory, ForModel) or not factory.parameters:
        dummies = dummy_model(factory.factory if isinstance(factory, ForModel) else factory, 1)
        return dummies, list(dummies.parameters)
    kinds = factory.parameters
    groups = make_optimizer(factory, {}).groups
    chosen = [max(group, key=lambda name: prod(kinds[name][1])) for group in groups if group]
    small = {
        name: (kind, DUMMY_SIZES[: len(shape)] if len(shape) != 1 else (35,))
        for name, (kind, shape) in ((name, kinds[name]) for name in chosen)
    }
    return replace(factory, parameters={**factory.parameters, **small}), chosen


def step_seconds_per_byte(
    factory: OptimizerFactory,
    shapes: Sequence[tuple[int, ...]] | Mapping[str, tuple[int, ...]],
    torch_device: torch.device | str,
) -> float:
    """Measured seconds per byte of parameter of a step and of freeing the gradients.

    Args:
        factory: makes the optimiser of given parameters.
        shapes: of the model's trainable parameters, by name where the factory is of a `ForModel`; float32.
            They are measured together, as small ones cost more per byte; above `MOST_BYTES` every n-th is
            taken.
        torch_device: where to run, as for `torch.device`.

    Returns:
        The median over `REPEATS`; 0 where there is no parameter.
    """
    named = shapes if isinstance(shapes, Mapping) else {str(i): shape for i, shape in enumerate(shapes)}
    chosen = _sampled(list(named.items()))
    if not chosen:
        return 0.0
    device = torch.device(torch_device)
    clock = Clock(device)
    laps: list[Lap] = []
    with worker_conditions(device):
        own = {name: nn.Parameter(torch.rand(shape, device=device)) for name, shape in chosen}
        parameters, optimizer = list(own.values()), make_optimizer(factory, own).optimizer
        scratch = torch.ones(SCRATCH_BYTES // 4, device=device)
        for _ in range(WARMUP + REPEATS):
            _give_gradients(parameters)
            scratch.mul_(1.0)
            start = clock.now()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            laps.append((start, clock.now()))
    return median(clock.seconds(laps)[WARMUP:]) / sum(4 * p.numel() for p in parameters)


def accumulate_seconds_per_byte(shapes: Sequence[tuple[int, ...]], torch_device: torch.device | str) -> float:
    """Measured seconds per byte of parameter of adding a new gradient to the sum of earlier ones.

    Arguments as of `step_seconds_per_byte`; 0 where there is no parameter.
    """
    chosen = _sampled([("", shape) for shape in shapes])
    if not chosen:
        return 0.0
    device = torch.device(torch_device)
    clock = Clock(device)
    totals = []
    with worker_conditions(device):
        sums = [torch.zeros(shape, device=device) for _, shape in chosen]
        for _ in range(1 + REPEATS):
            laps: list[Lap] = []
            for total in sums:
                gradient = torch.ones_like(total)
                start = clock.now()
                total += gradient
                laps.append((start, clock.now()))
            totals.append(sum(clock.seconds(laps)))
    return median(totals[1:]) / sum(4 * total.numel() for total in sums)


def optimizer_scratch(factory: OptimizerFactory) -> OptimizerScratch:
    """Scratch of a step on a CPU, and on accelerators, where torch's own steps take all parameters at once.

    Metered on one, two and three small parameters; of several groups the one that takes most counts.

    Raises:
        ConfigError: the optimiser cannot take a step without a closure.
    """
    bound, chosen = with_dummies(factory)
    alone = [_scratch(bound, name, len(bound.parameters[name][1]), False) for name in chosen]
    together = [_scratch(bound, name, len(bound.parameters[name][1]), True) for name in chosen]
    return OptimizerScratch(max(alone, key=_size), max(together, key=_size))


def _size(scratch: StepScratch) -> float:
    return scratch.before + scratch.own + scratch.every


def _scratch(factory: OptimizerFactory, name: str, dimensions: int, together: bool) -> StepScratch:
    one, two, three = (_risen(factory, name, dimensions, together, count) for count in (1, 2, 3))
    every = max(three - two, 0.0)
    return StepScratch(max(one - every, 0.0), max(two - one - every, 0.0), every)


def _risen(factory: OptimizerFactory, name: str, dimensions: int, together: bool, count: int) -> float:
    """Memory of a step on `count` equal parameters of one group, in parameters."""
    parameters = [nn.Parameter(torch.ones((_SIDE,) * max(dimensions, 1))) for _ in range(count)]
    optimizer = make_optimizer(factory, {name: parameters[0]}).optimizer
    (group,) = (each for each in optimizer.param_groups if each["params"])
    group["params"][:] = parameters
    if first := optimizer.state.get(parameters[0]):  # made with the optimiser, not at its first step
        optimizer.state.update({parameter: deepcopy(first) for parameter in parameters[1:]})
    one_by_one = group.get("fused") or isinstance(group.get("lr"), Tensor)  # as torch chooses by default
    if together and "foreach" in group and group["foreach"] is None and not one_by_one:
        group["foreach"] = True
    for _ in range(_SETTLED):
        step_on(optimizer, parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    with MemoryMeter(torch.device("cpu"), _held(optimizer, parameters)) as meter:
        meter.restart()
        step_on(optimizer)
        return round(meter.risen_bytes / (parameters[0].numel() * parameters[0].element_size()), 2)


def _held(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> Iterator[Tensor]:
    for parameter in parameters:
        assert parameter.grad is not None
        yield from (parameter.data, parameter.grad)
        yield from state_tensors(optimizer.state[parameter])


def step_on(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor] = ()) -> None:
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


def _sampled(shapes: Sequence[tuple[str, tuple[int, ...]]]) -> list[tuple[str, tuple[int, ...]]]:
    total = sum(4 * prod(shape) for _, shape in shapes)
    every = max(1, ceil(total / MOST_BYTES))
    return [(name, shape) for name, shape in shapes[::every] if prod(shape)]
