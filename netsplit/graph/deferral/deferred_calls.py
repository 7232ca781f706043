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

__all__ = ["CALLS", "PRODUCTS", "as_autocast"]

_below_autograd: Any = torch._C._AutoDispatchBelowADInplaceOrView
_functions: Any = torch._C._nn
_convolution_backward: Any = torch.ops.aten.convolution_backward.default
_Layout: TypeAlias = tuple[Sequence[int], Sequence[int]]  # shape, strides
_Scales: TypeAlias = tuple[float, float]  # addmm's beta, alpha
_UNSCALED: _Scales = (1, 1)


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

    forward: Callable[[Tensor, Tensor, Tensor | None, _Scales], Tensor]
    left: Callable[..., Tensor]  # (gradient, right factor, layout=of left)
    right: Callable[..., Tensor]  # (gradient, left factor, layout=of right)


class _Product(Function):
    """A product of two factors, of which number `weight` is a weight; `bias` as addmm and linear add it."""

    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        bias: Tensor | None,
        rule: _DeferralRule,
        weight: int,
        scales: _Scales = _UNSCALED,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.call = rule, weight, scales
        ctx.layouts = (left.shape, left.stride()), (right.shape, right.stride())
        ctx.bias_shape = None if bias is None else bias.shape
        needs = ctx.needs_input_grad
        ctx.save_for_backward(left if needs[1] else None, right if needs[0] else None)
        torch._C._set_grad_enabled(True)  # how a product is folded depends on whether a backward follows
        with _below_autograd():
            return rule.forward(left, right, bias, scales)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        (grad,) = grads
        gradients: list[Tensor | None] = [None] * 6
        if grad is None:
            return tuple(gradients)
        rule, weight, (beta, alpha) = ctx.call
        needs = ctx.needs_input_grad
        queue = queue_for(ctx.next_functions[weight]) if needs[weight] else None
        left, right = ctx.saved_tensors
        for i, factor, gradient in ((0, right, rule.left), (1, left, rule.right)):
            if not needs[i]:
                continue
            formula = gradient if alpha == 1 else partial(_scaled, gradient, alpha)
            if i == weight and queue is not None:
                queue.put((ctx.next_functions[i],), partial(formula, layout=ctx.layouts[i]), (grad, factor))
            else:
                gradients[i] = formula(grad, factor, layout=ctx.layouts[i])
        if needs[2]:
            gradients[2] = (grad if beta == 1 else grad * beta).sum_to_size(ctx.bias_shape)
        return tuple(gradients)


def _scaled(
    gradient: Callable[..., Tensor], alpha: float, grad: Tensor, other: Tensor, layout: _Layout
) -> Tensor:
    return gradient(grad, other, layout=layout) * alpha


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
    if len(shape) == 1:
        return weight.t().mv(grad)
    if len(shape) == 2 and _columns_first(shape, stride):
        return weight.t().mm(grad.t()).t()
    return _rows(grad).mm(weight).view(shape)


def _linear_right(grad: Tensor, x: Tensor, layout: _Layout) -> Tensor:
    shape, stride = layout
    return grad.ger(x) if x.dim() == 1 else _mm_right(grad, x, (shape[::-1], stride[::-1])).t()


# Function.apply, less its search for torch.func transforms and what a context of their form asks for.
_apply_convolution: Callable[..., Tensor] = super(Function, _Convolution).apply
_apply_product: Callable[..., Tensor] = super(Function, _Product).apply

_LINEAR = _DeferralRule(
    lambda x, weight, bias, _: _functions.linear(x, weight, bias), _linear_left, _linear_right
)
_MATMUL = _DeferralRule(lambda left, right, *_: left.matmul(right), _mm_left, _mm_right)
_ADDMM = _DeferralRule(
    lambda left, right, bias, by: torch.ops.aten.addmm.default(bias, left, right, beta=by[0], alpha=by[1]),
    _mm_left,
    _mm_right,
)
_BMM = _DeferralRule(
    lambda left, right, *_: left.bmm(right),
    lambda grad, right, layout: grad.bmm(right.transpose(1, 2)),
    lambda grad, left, layout: left.transpose(1, 2).bmm(grad),
)


def _product(left: Tensor, right: Tensor, *, weight: int) -> Tensor:
    return _multiply(left, right, None, _BMM if right.dim() == 3 else _MATMUL, weight)


def _addmm(
    bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1, weight: int
) -> Tensor:
    return _multiply(left, right, bias, _ADDMM, weight - 1, (beta, alpha))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _multiply(x, weight, bias, _LINEAR, 1)


def _multiply(
    left: Tensor,
    right: Tensor,
    bias: Tensor | None,
    rule: _DeferralRule,
    weight: int,
    scales: _Scales = _UNSCALED,
) -> Tensor:
    dtype = _autocast_dtype(left)
    if dtype is not None:
        left, right = _cast(left, dtype), _cast(right, dtype)
        bias = None if bias is None else _cast(bias, dtype)
    return _apply_product(left, right, bias, rule, weight, scales)


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    dtype = _autocast_dtype(x)
    if dtype is not None:
        x, weight = _cast(x, dtype), _cast(weight, dtype)
        bias = None if bias is None else _cast(bias, dtype)
    settings = stride, padding, dilation, transposed, output_padding, groups
    if x.dim() == weight.dim():
        return _apply_convolution(x, weight, bias, settings)
    return _apply_convolution(x.unsqueeze(0), weight, bias, settings).squeeze(0)


def _conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] | str = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Tensor:
    zeros = (0,) * (weight.dim() - 2)
    if padding == "valid":
        padding = zeros
    elif padding == "same":
        x, padding = _same(x, weight, dilation)
    return _convolution(x, weight, bias, stride, padding, dilation, False, zeros, groups)  # type: ignore[arg-type]


def _same(x: Tensor, weight: Tensor, dilation: Sequence[int]) -> tuple[Tensor, Sequence[int]]:
    """Input and padding for which the result is as large as the input: what is odd goes to the end."""
    sizes = weight.shape[2:]
    every = dilation if len(dilation) == len(sizes) else tuple(dilation) * len(sizes)
    total = [d * (size - 1) for d, size in zip(every, sizes, strict=True)]
    if any(t % 2 for t in total):
        x = as_autocast(x)  # as where autocast meets the convolution: before the padding
        x = torch.constant_pad_nd(x, [k for t in reversed(total) for k in (0, t % 2)], 0)
    return x, [t // 2 for t in total]


def _conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> Tensor:
    return _convolution(x, weight, bias, stride, padding, dilation, True, output_padding, groups)


PRODUCTS: dict[str, Callable[..., Tensor]] = {
    "mm": _product,
    "bmm": _product,
    "matmul": _product,
    "addmm": _addmm,
}
"""Those that take `weight` too, the weight's position among the arguments."""

CALLS: dict[str, Callable[..., Tensor]] = {
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "convolution": _convolution,
    "conv_transpose1d": _conv_transpose,
    "conv_transpose2d": _conv_transpose,
    "conv_transpose3d": _conv_transpose,
    "linear": _linear,
    **PRODUCTS,
}
"""Node kind -> what takes its operator's arguments."""
