"""What an optimiser costs: bytes of training state, and seconds of a step, per byte of parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil, prod
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.errors import ConfigError
from netsplit.profile.clock import Clock, Lap, worker_conditions

__all__ = [
    "accumulate_seconds_per_byte",
    "check_optimizer",
    "describe_optimizer",
    "optimizer_alpha",
    "step_seconds_per_byte",
]

OptimizerFactory = Callable[[Iterable[Tensor]], torch.optim.Optimizer]

DUMMY_SHAPE = (7, 5)  # no optimiser keeps anything else of this shape
SCRATCH_BYTES = 2**26  # gone over before a step, which finds the caches full of a backward's data


def optimizer_alpha(factory: OptimizerFactory) -> int:
    """Bytes of training state per byte of parameter: alpha of equation (5-18), thesis section 5.2.2.

    One for the parameter, one for its gradient, and one for each tensor of the parameter's shape that
    the optimiser keeps after a step: SGD 2, with momentum 3, Adam 4, with AMSGrad 5. Counters and
    factored moments, which do not grow with the parameter's bytes, are left out.

    Raises:
        ConfigError: the optimiser cannot take a step without a closure.
    """
    parameter = nn.Parameter(torch.ones(DUMMY_SHAPE))
    optimizer = factory([parameter])
    _step(optimizer, [parameter])
    kept = sum(
        tensor.numel() * tensor.element_size()
        for tensor in _tensors(optimizer.state[parameter])
        if tensor.shape == parameter.shape
    )
    return 2 + ceil(kept / (parameter.numel() * parameter.element_size()))


def describe_optimizer(factory: OptimizerFactory) -> str:
    """The optimiser's class and settings, the same in every process."""
    optimizer = factory([nn.Parameter(torch.ones(DUMMY_SHAPE))])
    settings = sorted((key, repr(value)) for key, value in optimizer.defaults.items())
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__} {settings}"


def check_optimizer(factory: OptimizerFactory) -> None:
    """Try a factory on a parameter of its own, so that a mistake shows before any worker starts.

    Raises:
        ConfigError: it makes no optimiser, or refuses its values.
    """
    try:
        optimizer_alpha(factory)
    except ConfigError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"optimizer cannot be made of {factory!r} ({error}): give a function of parameters, "
            "such as functools.partial(torch.optim.Adam, lr=1e-3)."
        ) from error


def step_seconds_per_byte(
    factory: OptimizerFactory,
    shapes: Sequence[tuple[int, ...]],
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
        shapes: of the model's trainable parameters, float32; small tensors cost more per byte than large
            ones, so they are measured together. Where they have more than `at_most_bytes` in all, every
            n-th is taken.
        torch_device: where to run, as for `torch.device`.

    Returns:
        The median over `repeats`; 0 where there is no parameter.
    """
    chosen = _sampled(shapes, at_most_bytes)
    if not chosen:
        return 0.0
    device = torch.device(torch_device)
    clock = Clock(device, threads)
    laps: list[Lap] = []
    with worker_conditions(device, threads):
        parameters = [nn.Parameter(torch.rand(shape, device=device)) for shape in chosen]
        optimizer = factory(parameters)
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
    chosen = _sampled(shapes, at_most_bytes)
    if not chosen:
        return 0.0
    device = torch.device(torch_device)
    clock = Clock(device, threads)
    totals = []
    with worker_conditions(device, threads):
        sums = [torch.zeros(shape, device=device) for shape in chosen]
        for _ in range(1 + repeats):
            laps: list[Lap] = []
            for total in sums:
                made = torch.ones_like(total)
                start = clock.now()
                total += made
                laps.append((start, clock.now()))
            totals.append(sum(clock.seconds(laps)))
    return median(totals[1:]) / sum(4 * total.numel() for total in sums)


def _step(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
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


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _tensors(value)


def _sampled(shapes: Sequence[tuple[int, ...]], at_most_bytes: int) -> list[tuple[int, ...]]:
    total = sum(4 * prod(shape) for shape in shapes)
    return [shape for shape in shapes[:: max(1, ceil(total / at_most_bytes))] if prod(shape)]
