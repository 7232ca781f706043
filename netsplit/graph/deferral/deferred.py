"""Weight gradients that are computed later than the gradients of inputs (Zero Bubble's split backward).

    with queue.collect():                          queue.run()
        torch.autograd.backward(outputs, seeds)
      │  every deferrable call:                      │  in the order of the backward:
      ├─ gradient of its input ──► next call         ├─ x, dy ──► dw
      └─ (x, dy, where dw goes) ──► queue            └─ weight.grad += dw

The calls are in `deferred_calls`; `rebuild(..., deferrable=True)` puts them into a module. Outside
``collect`` they do what plain autograd does. Source: Qi et al., Zero Bubble Pipeline Parallelism,
ICLR 2024, section 2; "backward weight delaying" of Zhuang et al., AlpaComm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from netsplit.graph.deferral.deferrable import deferrable_nodes

__all__ = ["WeightGradients", "deferrable_nodes", "queue_for"]

Edge: TypeAlias = tuple[Any, int]  # an autograd node, and which of its inputs

_current: WeightGradients | None = None
"""Not one for each thread: autograd runs a CUDA backward on a thread of its own."""


def queue_for(edge: Edge) -> WeightGradients | None:
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
