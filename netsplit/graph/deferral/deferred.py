"""Weight gradients that are computed later than the gradients of inputs (Zero Bubble's split backward).

    with queue.collect():                          queue.run()
        torch.autograd.backward(outputs, seeds)
      │  every deferrable call:                      │  in the order of the backward:
      ├─ gradient of its input ──► next call         ├─ x, dy ──► dw
      └─ (x, dy, where dw goes) ──► queue            └─ weight.grad += dw

`rebuild(..., deferrable=True)` puts the calls of `CALLS` into a module: each is one autograd function whose
forward is the operator itself, below autograd, and whose backward is autograd's own formula for it, as one
piece or in two. Outside ``collect`` they do what plain autograd does. Under autocast the operands are cast
before, where autograd sees it, as autocast would. Source: Qi et al., Zero Bubble Pipeline Parallelism,
ICLR 2024, section 2; "backward weight delaying" of Zhuang et al., AlpaComm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import GradientEdge

__all__ = ["CALLS", "WeightGradients", "as_autocast"]

Edge: TypeAlias = tuple[Any, int]  # an autograd node, and which of its inputs

_current: WeightGradients | None = None
"""Not one for each thread: autograd runs a CUDA backward on a thread of its own."""


def _queue_for(edge: Edge) -> WeightGradients | None:
    """The queue that takes the gradient of this edge now, if any. A parameter's hooks get theirs at once."""
    if _current is None:
        return None
    leaf = getattr(edge[0], "variable", None)
    hooked = leaf is not None and (leaf._backward_hooks or leaf._post_accumulate_grad_hooks)
    return None if hooked else _current


@dataclass
class _Deferred:
    edges: tuple[Edge, ...]  # where each of the gradients goes
    compute: Callable[..., Tensor | Sequence[Tensor | None]]
    held: tuple[Tensor, ...]  # its arguments, kept alive for it
    batch: int  # number of the `collect` it came from


class WeightGradients:
    """Weight gradients put off by backwards, to be computed by `run` on the stream that these ran on.

    What a backward read, and the gradients it passed on, may not be written before. The gradient of a
    parameter that has hooks is not put off.
    """

    def __init__(self) -> None:
        self._entries: list[_Deferred] = []
        self._batch = 0

    def __len__(self) -> int:
        """Calls whose weight gradient is still to be computed."""
        return len(self._entries)

    @contextmanager
    def collect(self) -> Iterator[WeightGradients]:
        """Within, a backward leaves deferrable weight gradients to this queue; after an error, none.

        Raises:
            RuntimeError: a queue is collecting already.
        """
        global _current
        if _current is not None:
            raise RuntimeError("weight gradients are being collected already.")
        before, self._batch = len(self._entries), self._batch + 1
        _current = self
        try:
            yield self
        except BaseException:
            del self._entries[before:]
            raise
        finally:
            _current = None

    def put(
        self,
        edges: Sequence[Edge],
        compute: Callable[..., Tensor | Sequence[Tensor | None]],
        held: tuple[Tensor, ...],
    ) -> None:
        """Put off ``compute(*held)``, whose results are the gradients of `edges`.

        Tensors are held without their autograd graph, which would keep leaves and their gradients alive.
        """
        alone = tuple(tensor.detach() for tensor in held)
        self._entries.append(_Deferred(tuple(edges), compute, alone, self._batch))

    def run(self) -> None:
        """Compute what was put off and add it to the parameters' ``grad``; the queue is empty then.

        In the order of the backwards. The gradients of a weight that one backward used several times are
        summed first, as autograd does. Tensors are let go one by one.
        """
        entries, self._entries = self._entries[::-1], []
        to_come = Counter((entry.batch, *edge) for entry in entries for edge in entry.edges)
        sums: dict[tuple[Any, ...], Tensor] = {}
        with torch.no_grad():
            while entries:
                self._compute(entries.pop(), to_come, sums)

    def _compute(
        self, entry: _Deferred, to_come: Counter[tuple[Any, ...]], sums: dict[tuple[Any, ...], Tensor]
    ) -> None:
        """One call's gradients, of which nothing is left when the next call's are computed."""
        gradients = entry.compute(*entry.held)
        gradients = (gradients,) if isinstance(gradients, Tensor) else gradients
        for edge, grad in zip(entry.edges, gradients, strict=True):
            key = (entry.batch, *edge)
            to_come[key] -= 1
            before = sums.pop(key, None)
            if grad is not None and before is not None:
                grad = before + grad
            elif grad is None:
                grad = before
            if grad is None:
                continue
            if to_come[key]:
                sums[key] = grad
            else:
                _accumulate(edge, grad)


def _accumulate(edge: Edge, grad: Tensor) -> None:
    """Send a gradient along an edge of the autograd graph; straight into the leaf where there is one."""
    leaf = getattr(edge[0], "variable", None)
    if leaf is None or leaf._post_accumulate_grad_hooks:
        torch.autograd.backward((GradientEdge(*edge),), (grad,))
    elif leaf.grad is not None:
        leaf.grad += grad
    elif grad.stride() == leaf.stride():
        leaf.grad = grad
    else:
        leaf.grad = torch.empty_like(leaf).copy_(grad)


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
        queue = _queue_for(ctx.next_functions[1]) if needs[1] else None
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
            queue, gradient = _queue_for(ctx.next_functions[1]), partial(ctx.rule.right, layout=of_weight)
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
