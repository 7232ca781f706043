"""Optimisers whose state or attributes would be lost are refused, in a sentence."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from netsplit.errors import ConfigError
from netsplit.optim.learning_rate import LearningRate, warmup_cosine
from netsplit.profile.measure.optimizer import check_optimizer, check_switchable


class Momentum(torch.optim.Optimizer):
    """With state of names that are to be chosen."""

    def __init__(self, params: Iterable[Tensor], names: tuple[str, ...], shared: bool = False) -> None:
        super().__init__(params, {"lr": 0.1})
        self.names, self.shared, self.steps = names, shared, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    if not self.state[p]:
                        first = torch.zeros_like(p)
                        made = (first if self.shared else torch.zeros_like(p) for _ in self.names)
                        self.state[p] = dict(zip(self.names, made, strict=True))
                    for name in self.names:
                        self.state[p][name].mul_(0.9).add_(p.grad)
                    p.sub_(self.state[p][self.names[0]], alpha=group["lr"])


class Remembering(Momentum):
    """Keeps norms of its own in a deque, too."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, ("m",))
        self.last: deque[int] = deque(maxlen=3)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.last.append(self.steps)
        super().step()


def of(*names: str, shared: bool = False) -> Callable[[Iterable[Tensor]], torch.optim.Optimizer]:
    return lambda params: Momentum(params, names, shared)


def test_state_that_a_checkpoint_would_lose_or_double_is_refused() -> None:
    check_optimizer(of("m", "v"))
    with pytest.raises(ConfigError, match=r"keeps state under 'exp\.avg', but a dot"):
        check_optimizer(of("exp.avg"))
    with pytest.raises(ConfigError, match="keeps one tensor as 'm' and 'v', which would become two tensors"):
        check_optimizer(of("m", "v", shared=True))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_what_changes_beside_state_and_does_not_move_is_refused_where_plans_change(kind: Any) -> None:
    check_switchable(kind, None)
    check_switchable(of("m"), None)
    with pytest.raises(ConfigError, match="may keep state in 'last'"):
        check_switchable(Remembering, None)


def counting() -> Callable[[int], float]:
    counted = [0]

    def factor(_: int) -> float:
        counted[0] += 1
        return float(0.9 ** counted[0])

    return factor


def in_sequence(optimizer: torch.optim.Optimizer) -> SequentialLR:
    return SequentialLR(optimizer, [StepLR(optimizer, 2), LambdaLR(optimizer, counting())], [1])


@pytest.mark.parametrize(
    "rate", [LearningRate(LambdaLR, lr_lambda=counting()), LearningRate(in_sequence)], ids=["alone", "nested"]
)
def test_schedulers_whose_state_lacks_what_changes_are_refused(rate: LearningRate) -> None:
    with pytest.raises(ConfigError, match=r"gives other rates once its state_dict\(\)"):
        check_switchable(torch.optim.SGD, rate)


@pytest.mark.parametrize(
    "rate",
    [
        LearningRate(LambdaLR, lr_lambda=lambda n: 0.9**n),
        LearningRate(CosineAnnealingLR, T_max=20),
        LearningRate(OneCycleLR, max_lr=0.1, total_steps=30),
        LearningRate(ReduceLROnPlateau, every="epoch"),
        LearningRate(lambda o: SequentialLR(o, [StepLR(o, 2), ConstantLR(o)], [1])),
        LearningRate(warmup_cosine, warmup=2, steps=30),
    ],
)
def test_schedulers_whose_state_has_all_are_taken(rate: LearningRate) -> None:
    check_switchable(partial(torch.optim.SGD, momentum=0.9), rate)
