"""What cannot be split is refused before training, each with its reason in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim

from netsplit.errors import ConfigError
from netsplit.optim.optimizers import ParameterGroups, for_model
from netsplit.profile.measure.optimizer import check_optimizer
from tests.optim.test_optimizers import Net

MODEL = Net()


class NormCoupled(optim.SGD):
    """Divides by the norm of all its gradients together."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in every]).norm()
        for p in every:
            p.data.sub_(p.grad / norm, alpha=0.1)


class Noisy(optim.SGD):
    """Langevin dynamics: draws one number after another for all parameters."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(torch.randn_like(p))


class CountsGradients(optim.SGD):
    """Its groups count the steps in which any of their parameters had a gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            group["k"] = group.get("k", 0) + bool(moved)
            for p in moved:
                p.sub_(p.grad, alpha=group["lr"] / group["k"])


class Lookahead(optim.SGD):
    """Keeps slow weights in a list beside the groups."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for p, slow in zip(self.param_groups[0]["params"], self.slow, strict=False):
            p.copy_(slow.add_(p - slow, alpha=0.5))


def misspelt(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1, momentun=0.9)  # type: ignore[call-arg]


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "closes over the model": (
        lambda _: optim.SGD(MODEL.parameters(), lr=0.1),
        "optimizer SGD has 6 parameters that it was not given",
    ),
    "drops some": (
        lambda parameters: optim.SGD([p for p in parameters if p.ndim > 1], lr=0.1),
        r"leaves out parameter 'first.bias': .*requires_grad_\(False\)",
    ),
    "a list": (
        lambda parameters: [optim.SGD(parameters[:1], lr=0.1), optim.SGD(parameters[1:], lr=0.1)],
        "returns 2 optimisers, but a device steps one",
    ),
    "a closure": (optim.LBFGS, "cannot take a step without a closure"),
    "sparse": (optim.SparseAdam, "SparseAdam does not support dense gradients"),
    "a norm of all": (partial(NormCoupled, lr=0.1), "NormCoupled updates a parameter differently when"),
    "gradients counted": (partial(CountsGradients, lr=0.1), "differently when others, maybe .*had gradients"),
    "tensors by position": (
        Lookahead,
        "optimizer cannot be made from .*Lookahead",
    ),
    "values": (
        lambda ps: optim.SGD(ps, lr=0.1 / float(sum(p.detach().norm() for p in ps))),
        "reads parameter values when it is created, but a device holds only its own",
    ),
    "noise": (partial(Noisy, lr=0.1), "Noisy updates a parameter differently when others"),
    "a bad setting": (misspelt, "momentun"),
    "a pattern that matches nothing": (
        ParameterGroups(optim.SGD, lr=0.1, groups=[{"match": ["*bias", "*.beta"], "lr": 0.2}]),
        r"pattern '\*.beta', which matches no trainable parameter.*first.bias",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_true_reason(name: str) -> None:
    factory, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words) as e:
        check_optimizer(for_model(factory, MODEL))
    assert "\n" not in str(e.value)
    assert str(e.value).endswith((".", ").", ")"))


class Shrinking(optim.SGD):
    """Moves what has no gradient, too."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.9)
        return super().step(closure)


def test_an_optimiser_that_moves_what_has_no_gradient_is_refused() -> None:
    model = nn.Linear(6, 3)
    check_optimizer(for_model(optim.AdamW, model))
    with pytest.raises(ConfigError, match="updates parameters that have no gradient"):
        check_optimizer(for_model(partial(Shrinking, lr=0.1), model))
