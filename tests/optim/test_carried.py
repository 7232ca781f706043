"""Optimisers whose state or attributes would be lost are refused, in a sentence."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from netsplit.errors import ConfigError
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
    with pytest.raises(ConfigError, match=r"keeps state under 'exp\.avg', in which a dot"):
        check_optimizer(of("exp.avg"))
    with pytest.raises(ConfigError, match="keeps one tensor as 'm' and 'v', which would become two"):
        check_optimizer(of("m", "v", shared=True))


@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adafactor, torch.optim.ASGD]
)
def test_what_changes_beside_state_and_does_not_move_is_refused_where_plans_change(kind: Any) -> None:
    check_switchable(kind)
    check_switchable(of("m"))
    with pytest.raises(ConfigError, match="keeps what changes with its steps in 'last'"):
        check_switchable(Remembering)
