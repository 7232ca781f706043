"""What an optimiser's step allocates for itself, metered on small parameters.

one, two, three alike ─► bytes beyond what is there ─► a of the one before, b of one's own, c of all

    a step on one parameter after the other     max over parameters of a · before + b · own
    on all at once (``foreach``)                c · all
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from netsplit.optim.optimizers import OptimizerFactory, make_optimizer
from netsplit.profile.costs import OptimizerScratch, StepScratch
from netsplit.profile.measure.memory_meter import MemoryMeter
from netsplit.profile.measure.optimizer import state_tensors, step_on, with_dummies

__all__ = ["optimizer_scratch"]

WARM = 2  # steps after which an optimiser has all the state that it keeps
SIDE = 48  # of a dummy: numbers that optimisers make beside are little


def optimizer_scratch(factory: OptimizerFactory) -> OptimizerScratch:
    """Scratch of a step on a CPU, and on accelerators, where torch's own steps take all parameters at once.

    Of groups of parameters the one that takes most counts.

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
    """Memory of a step on so many equal parameters of one group, in parameters."""
    parameters = [nn.Parameter(torch.ones((SIDE,) * max(dimensions, 1))) for _ in range(count)]
    optimizer = make_optimizer(factory, {name: parameters[0]}).optimizer
    (group,) = (each for each in optimizer.param_groups if each["params"])
    group["params"][:] = parameters
    if first := optimizer.state.get(parameters[0]):  # made with the optimiser, not at its first step
        optimizer.state.update({parameter: deepcopy(first) for parameter in parameters[1:]})
    one_by_one = group.get("fused") or isinstance(group.get("lr"), Tensor)  # as torch chooses by default
    if together and "foreach" in group and group["foreach"] is None and not one_by_one:
        group["foreach"] = True
    for _ in range(WARM):
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
