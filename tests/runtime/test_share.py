"""What happens to a device's gradients between the backward and the optimiser."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from netsplit.runtime.share import LossScale, Share, UpdateRule

CPU = torch.device("cpu")
SGD = partial(torch.optim.SGD, lr=1.0)


def share_of(
    gradients: dict[str, Tensor | None], rule: UpdateRule | None = None, copies: frozenset[str] = frozenset()
) -> Share:
    """Parameters of zeros with these gradients."""
    sizes = {"half": (2,), "double": (3,), "idle": (1,)}
    dtypes = {"half": torch.bfloat16, "double": torch.float64, "idle": torch.float32}
    values = {name: torch.zeros(sizes[name], dtype=dtypes[name]) for name in gradients}
    share = Share.of(values, CPU, SGD, list(values), rule, copies)
    for name, grad in gradients.items():
        share.parameters[name].grad = grad
    return share


def test_gradients_of_several_dtypes_are_summed_exactly_and_absent_ones_stay_absent() -> None:
    fine = torch.tensor([1 + 2**-40, 3.0, -1.0], dtype=torch.float64)
    one = share_of({"half": torch.ones(2).bfloat16(), "double": fine, "idle": None})
    two = share_of({"half": None, "double": fine, "idle": None})
    total = one.packed_gradients(one.parameters) + two.packed_gradients(two.parameters)
    for share in (one, two):
        share.unpack_gradients(total, share.parameters)
        gradients = {name: p.grad for name, p in share.parameters.items()}
        assert torch.equal(gradients["double"], 2 * fine)  # type: ignore[arg-type]
        assert torch.equal(gradients["half"], torch.ones(2).bfloat16())  # type: ignore[arg-type]
        assert gradients["idle"] is None


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_gradients_that_are_not_finite_are_clipped_as_torch_clips_them(bad: float) -> None:
    gradients = {"double": torch.tensor([1.0, bad, 2.0], dtype=torch.float64), "idle": torch.ones(1)}
    share = share_of({name: grad.clone() for name, grad in gradients.items()}, UpdateRule(clip_norm=0.5))
    plain = [nn.Parameter(torch.zeros_like(grad)) for grad in gradients.values()]
    for parameter, grad in zip(plain, gradients.values(), strict=True):
        parameter.grad = grad
    torch.nn.utils.clip_grad_norm_(plain, 0.5)
    SGD(plain).step()
    share.step(1.0, share.norm_terms())
    for parameter, own in zip(plain, share.parameters.values(), strict=True):
        torch.testing.assert_close(own.data, parameter.data, equal_nan=True)


def test_the_loss_scale_follows_the_rule_of_torch() -> None:
    scale, torchs = LossScale(interval=3), torch.amp.GradScaler("cpu", growth_interval=3)
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = SGD([parameter])
    for overflow in (False, False, True, False, False, False, False, True, True):
        grad = torch.full((1,), float("inf") if overflow else 1.0)
        torchs.scale(torch.ones(1))
        parameter.grad = grad
        torchs.step(optimizer)
        torchs.update()
        scale.update(overflow)
        assert scale.factor == torchs.get_scale()


def test_the_norm_counts_complex_gradients_as_torch_does() -> None:
    values = {"wave": torch.randn(5, dtype=torch.complex64), "real": torch.randn(3)}
    share = Share.of(values, torch.device("cpu"), SGD, values, UpdateRule(clip_norm=0.5))
    gradients = {k: torch.randn_like(t) for k, t in values.items()}
    plain = [torch.nn.Parameter(t.clone()) for t in values.values()]
    for own, parameter, gradient in zip(share.parameters.values(), plain, gradients.values(), strict=True):
        own.grad, parameter.grad = gradient.clone(), gradient.clone()
    torch.nn.utils.clip_grad_norm_(plain, 0.5)
    step = SGD(plain)
    step.step()
    share.step(terms=share.norm_terms())
    for own, parameter in zip(share.parameters.values(), plain, strict=True):
        torch.testing.assert_close(own, parameter)
