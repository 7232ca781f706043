"""Weight gradients that are computed later than the gradients of inputs (Zero Bubble's split backward).

    with queue.collect():                          queue.run()
        torch.autograd.backward(outputs, seeds)
      │  every deferrable call:                      │  in the order of the backward:
      ├─ gradient of its input ──► next call         ├─ x, dy ──► dw
      └─ (x, dy, where dw goes) ──► queue            └─ weight.grad += dw

`rebuild(..., deferrable=True)` puts the calls of `CALLS` into a module: each is one autograd function, which
records the operator in a graph of its own and goes back through that, at once or in two parts. Outside
``collect`` they do what plain autograd does.

Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2; "backward weight delaying" of
Zhuang et al., AlpaComm.
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
from torch.autograd.graph import GradientEdge, get_gradient_edge

__all__ = ["CALLS", "WeightGradients", "as_autocast"]

Edge: TypeAlias = tuple[Any, int]  # an autograd node, and which of its inputs

_current: WeightGradients | None = None
"""Not one for each thread: autograd runs a CUDA backward on a thread of its own."""


@dataclass
class _Deferred:
    edges: tuple[Edge, ...]  # where each of the gradients goes
    compute: Callable[..., Tensor | Sequence[Tensor | None]]
    held: tuple[Tensor, ...]  # its arguments, kept alive for it
    batch: int  # number of the `collect` it came from


class WeightGradients:
    """Weight gradients put off by backwards, to be computed by `run` on the stream that these ran on.

    What a backward read and passed on may not be written before. Hooks of parameters, which in a graph are
    nodes, are not called.
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
        """Put off ``compute(*held)``, whose results are the gradients of `edges`; tensors are held
        detached."""
        alone = tuple(tensor.detach() for tensor in held)
        self._entries.append(_Deferred(tuple(edges), compute, alone, self._batch))

    def run(self) -> None:
        """Compute what was put off and add it to the parameters' ``grad``, in the order of the backwards.

        Gradients of a weight that one backward used several times are summed first, as autograd does.
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
    if leaf is None:
        torch.autograd.backward((GradientEdge(*edge),), (grad,))
    elif leaf.grad is not None:
        leaf.grad += grad
    elif grad.stride() == leaf.stride():
        leaf.grad = grad
    else:
        leaf.grad = torch.empty_like(leaf).copy_(grad)


def as_autocast(tensor: Tensor) -> Tensor:
    """The tensor as autocast hands it to a convolution or a product; itself where autocast is off."""
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind) or tensor.dtype == torch.float64 or not tensor.is_floating_point():
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


class _Deferrable(Function):
    """``operator(x, weight, bias, *settings)``, recorded in a graph of its own, which a backward in two parts
    goes through twice; a convolution's bias goes with its weight."""

    @staticmethod
    def forward(ctx: Any, operator: Callable[..., Tensor], with_bias: bool, *given: Any) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.put_off = (1, 2) if with_bias else (1,)
        leaves = [
            t.detach().requires_grad_(need) if isinstance(t, Tensor) else t
            for t, need in zip(given[:3], ctx.needs_input_grad[2:5], strict=True)
        ]
        with torch.enable_grad():
            y = operator(*leaves, *given[3:])
        ctx.inner = get_gradient_edge(y), leaves
        with _below_autograd():  # no view, which could not be written in place
            return y.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        results: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        (grad,), (edge, leaves), ctx.inner = grads, ctx.inner, (None, None)
        if grad is None:
            return tuple(results)
        needs, edges = ctx.needs_input_grad[2:5], ctx.next_functions  # of tensors alone
        queue = _current if needs[1] else None
        later = [i for i in ctx.put_off if needs[i]] if queue is not None else []
        now = [i for i in range(3) if needs[i] and i not in later]
        if now:
            gradients = torch.autograd.grad([edge], [leaves[i] for i in now], [grad], bool(later))
            for i, gradient in zip(now, gradients, strict=True):
                results[2 + i] = gradient
        if queue is not None:
            put_off = partial(torch.autograd.grad, edge, [leaves[i] for i in later])
            queue.put([edges[i] for i in later], put_off, (grad,))
        return tuple(results)


_below_autograd: Any = torch._C._AutoDispatchBelowADInplaceOrView

# Function.apply, less its search for torch.func transforms and what a context of their form asks for.
_apply: Callable[..., Tensor] = super(Function, _Deferrable).apply


def _deferring(operator: Callable[..., Tensor], with_bias: bool = False) -> Callable[..., Tensor]:
    """The operator with its weight's gradient put off; with a bias, that of it too where `with_bias`."""

    def call(x: Tensor, weight: Tensor, bias: Tensor | None = None, *settings: Any, **named: Any) -> Tensor:
        given = [t if t is None else as_autocast(t) for t in (x, weight, bias)]
        return _apply(partial(operator, **named) if named else operator, with_bias, *given, *settings)

    return call


_matmul = _deferring(lambda x, weight, _: x.matmul(weight))
_with_addend = _deferring(lambda x, weight, bias: torch.addmm(bias, x, weight))

CALLS: dict[str, Callable[..., Tensor]] = {
    "conv1d": _deferring(torch.conv1d, with_bias=True),
    "conv2d": _deferring(torch.conv2d, with_bias=True),
    "conv3d": _deferring(torch.conv3d, with_bias=True),
    "linear": _deferring(torch.nn.functional.linear),
    "mm": _matmul,
    "matmul": _matmul,
    "addmm": lambda bias, x, weight: _with_addend(x, weight, bias),
}
"""Node kind -> what takes its operator's arguments."""
