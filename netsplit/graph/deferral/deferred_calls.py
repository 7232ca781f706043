"""Convolutions and matrix products that can leave their weight's gradient to a queue (`deferred`).

Each is one autograd function whose forward is the operator itself, below autograd, and whose backward is
autograd's own formula for it, as one piece or in two.

Under autocast the operands are cast before, where autograd sees it, as autocast would: a gradient is
then of the dtype of the cast operand, and goes through the cast to the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function

from netsplit.graph.deferral.deferred import queue_for

__all__ = ["CALLS", "as_autocast"]

_below_autograd: Any = torch._C._AutoDispatchBelowADInplaceOrView
_functions: Any = torch._C._nn
_convolution_backward: Any = torch.ops.aten.convolution_backward.default
_Layout: TypeAlias = tuple[Sequence[int], Sequence[int]]  # shape, strides


def as_autocast(tensor: Tensor) -> Tensor:
    """The tensor as autocast hands it to a convolution or a product; itself where autocast is off."""
    dtype = _autocast_dtype(tensor)
    return tensor if dtype is None else _cast(tensor, dtype)


def _autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype == torch.float64 or not tensor.is_floating_point():
        return tensor
    return tensor.to(dtype)


class _Convolution(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, settings: tuple[Any, ...]
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.settings = settings
        ctx.bias_sizes = (0,) if bias is None else bias.shape
        ctx.save_for_backward(x, weight)
        torch._C._set_grad_enabled(True)  # kernels are chosen by whether a backward will follow
        with _below_autograd():
            return torch.convolution(x, weight, bias, *settings)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        (grad,) = grads
        if grad is None:
            return None, None, None, None
        x, weight = ctx.saved_tensors
        needs, rest = ctx.needs_input_grad[:3], (ctx.bias_sizes, *ctx.settings)
        queue = queue_for(ctx.next_functions[1]) if needs[1] else None
        if queue is None:
            return *_convolution_backward(grad, x, weight, *rest, needs), None
        later = (False, True, needs[2])
        put_off = partial(_weight_gradients, _stand_in(weight), (*rest, later))
        queue.put(ctx.next_functions[1 : 1 + sum(later)], put_off, (grad, x))
        if not needs[0]:
            return None, None, None, None
        return _convolution_backward(grad, x, weight, *rest, (True, False, False))[0], None, None, None


def _stand_in(weight: Tensor) -> Callable[[], Tensor]:
    """Makes what has the weight's form, which is all that its gradient asks for. A leaf is there anyway."""
    if weight.grad_fn is None:
        return weight.detach
    shape, stride, dtype, device = weight.shape, weight.stride(), weight.dtype, weight.device
    return lambda: torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _weight_gradients(
    weight: Callable[[], Tensor], rest: tuple[Any, ...], grad: Tensor, x: Tensor
) -> Sequence[Tensor | None]:
    _, *gradients = _convolution_backward(grad, x, weight(), *rest)
    return [each for each in gradients if each is not None]


@dataclass(frozen=True)
class _DeferralRule:
    """How a product is computed, and its two factors' gradients, as autograd has them."""

    forward: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    left: Callable[..., Tensor]  # (gradient, right factor, layout=of left)
    right: Callable[..., Tensor]  # (gradient, left factor, layout=of right)


class _Product(Function):
    """A product of a tensor with a weight from the right; `bias` as addmm and linear add it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rule: _DeferralRule) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.rule = rule
        ctx.layouts = (x.shape, x.stride()), (weight.shape, weight.stride())
        ctx.bias_shape = None if bias is None else bias.shape
        needs = ctx.needs_input_grad
        ctx.save_for_backward(x if needs[1] else None, weight if needs[0] else None)
        torch._C._set_grad_enabled(True)  # how a product is folded depends on whether a backward follows
        with _below_autograd():
            return rule.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        (grad,) = grads
        if grad is None:
            return None, None, None, None
        needs, (x, weight), (of_x, of_weight) = ctx.needs_input_grad, ctx.saved_tensors, ctx.layouts
        made: list[Tensor | None] = [None] * 4
        if needs[0]:
            made[0] = ctx.rule.left(grad, weight, layout=of_x)
        if needs[1]:
            queue, gradient = queue_for(ctx.next_functions[1]), partial(ctx.rule.right, layout=of_weight)
            if queue is None:
                made[1] = gradient(grad, x)
            else:
                queue.put((ctx.next_functions[1],), gradient, (grad, x))
        if needs[2]:
            made[2] = grad.sum_to_size(ctx.bias_shape)
        return tuple(made)


def _columns_first(shape: Sequence[int], stride: Sequence[int]) -> bool:
    return stride[0] == 1 and stride[1] == shape[0]


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1])


def _mm_left(grad: Tensor, right: Tensor, layout: _Layout) -> Tensor:
    """The gradient of the left side of `x @ right`, column by column where `x` is kept so."""
    shape, stride = layout
    if len(shape) == 2 and _columns_first(shape, stride):
        return right.mm(grad.t()).t()
    return _rows(grad).mm(right.t()).view(shape)


def _mm_right(grad: Tensor, left: Tensor, layout: _Layout) -> Tensor:
    grad, left = _rows(grad), _rows(left)
    return grad.t().mm(left).t() if _columns_first(*layout) else left.t().mm(grad)


def _linear_left(grad: Tensor, weight: Tensor, layout: _Layout) -> Tensor:
    shape, stride = layout
    if len(shape) == 2 and _columns_first(shape, stride):
        return weight.t().mm(grad.t()).t()
    return _rows(grad).mm(weight).view(shape)


def _linear_right(grad: Tensor, x: Tensor, layout: _Layout) -> Tensor:
    shape, stride = layout
    return _mm_right(grad, x, (shape[::-1], stride[::-1])).t()


# Function.apply, less its search for torch.func transforms and what a context of their form asks for.
_apply_convolution: Callable[..., Tensor] = super(Function, _Convolution).apply
_apply_product: Callable[..., Tensor] = super(Function, _Product).apply

_LINEAR = _DeferralRule(
    lambda x, weight, bias: _functions.linear(x, weight, bias), _linear_left, _linear_right
)
_MATMUL = _DeferralRule(lambda x, weight, _: x.matmul(weight), _mm_left, _mm_right)
_ADDMM = _DeferralRule(
    lambda x, weight, bias: torch.ops.aten.addmm.default(bias, x, weight), _mm_left, _mm_right
)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return _multiply(x, weight, None, _MATMUL)


def _addmm(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return _multiply(x, weight, bias, _ADDMM)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _multiply(x, weight, bias, _LINEAR)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, rule: _DeferralRule) -> Tensor:
    dtype = _autocast_dtype(x)
    if dtype is not None:
        x, weight = _cast(x, dtype), _cast(weight, dtype)
        bias = None if bias is None else _cast(bias, dtype)
    return _apply_product(x, weight, bias, rule)


def _conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Tensor:
    dtype = _autocast_dtype(x)
    if dtype is not None:
        x, weight = _cast(x, dtype), _cast(weight, dtype)
        bias = None if bias is None else _cast(bias, dtype)
    settings = stride, padding, dilation, False, (0,) * (weight.dim() - 2), groups
    if x.dim() == weight.dim():
        return _apply_convolution(x, weight, bias, settings)
    return _apply_convolution(x.unsqueeze(0), weight, bias, settings).squeeze(0)


CALLS: dict[str, Callable[..., Tensor]] = {
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "linear": _linear,
    "mm": _product,
    "matmul": _product,
    "addmm": _addmm,
}
"""Node kind -> what takes its operator's arguments."""
