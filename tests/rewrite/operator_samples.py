"""Torch's own samples of its operators, small ones of many kinds, each as a captured step of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import getsourcelines
from itertools import islice
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_unflatten

from netsplit.errors import NetSplitError
from netsplit.graph import Graph, Node, capture, initial_values, rebuild
from netsplit.runtime.checkpoint.torch_format import whole_tensors

__all__ = ["SampledStep", "called_here", "kind_of", "sampled_steps", "sizes_to_try", "unlike_samples"]

# The samples' module forbids to set flags of backends, as other tests of the process do.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

LOOKED_AT, MOST_ELEMENTS = 400, 4000
GIVEN = torch.ones(2, 1, dtype=torch.float64)
ROUNDING = 1e-10
"""A fraction of the largest gradient or of the number itself: some hundred additions in double."""


class CallsOperator(nn.Module):
    """An operator whose tensors are parameters and buffers; each element that it makes counts otherwise."""

    def __init__(self, op: Callable[..., Any], given: Any, trained: int) -> None:
        super().__init__()
        self.op = op
        self.one = nn.Parameter(torch.ones((), dtype=torch.float64))  # some operators have no gradient
        self.given, self.spec = tree_flatten(given)
        for i, each in enumerate(self.given):
            if not isinstance(each, Tensor):
                continue
            own = each.detach().clone()
            if (own.is_floating_point() or own.is_complex()) and len(list(self.parameters())) <= trained:
                self.register_parameter(f"p{i}", nn.Parameter(own))
            else:
                self.register_buffer(f"p{i}", own)
        args, kwargs = tree_unflatten([self._given(i) for i in range(len(self.given))], self.spec)
        for i, made in enumerate(_tensors(self.call(args, kwargs))):
            shape = (*made.shape, 2) if made.is_complex() else made.shape
            counts = torch.linspace(0.3, 1.7, prod(shape), dtype=torch.float64).sin().view(shape)
            self.register_buffer(f"counts{i}", counts)

    def forward(self, x: Tensor) -> Tensor:
        given = [self._given(i) for i in range(len(self.given))]
        args, kwargs = tree_unflatten(given, self.spec)
        total = x.sum() * self.one
        for i, made in enumerate(_tensors(self.call(args, kwargs))):
            made = torch.view_as_real(made.resolve_conj()) if made.is_complex() else made
            total = total + (made.double().nan_to_num(0.5, 1.5, -1.5) * getattr(self, f"counts{i}")).sum()
        return total

    def call(self, args: Any, kwargs: Any) -> Any:
        return self.op(*args, **kwargs)

    def _given(self, i: int) -> Any:
        """No parameter itself, which must not be written; buffers are."""
        if not isinstance(self.given[i], Tensor):
            return self.given[i]
        own = getattr(self, f"p{i}")
        return own * 1 if own.requires_grad else own


_CALL = f"/operator_samples.py:{getsourcelines(CallsOperator.call)[1] + 1}"


@dataclass(frozen=True)
class SampledStep:
    """An operator's call, as a graph."""

    model: nn.Module
    graph: Graph

    def result(self, graph: Graph) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and every gradient of a parameter, by its name."""
        values = {
            k: t.detach().clone().requires_grad_(t.requires_grad)
            for k, t in initial_values(self.model, graph).items()
        }
        torch.manual_seed(0)
        loss = rebuild(graph, values)(GIVEN, GIVEN)
        if loss.requires_grad:
            loss.backward()
        grads: dict[str, Tensor] = {}
        for k, tensor in values.items():
            if tensor.grad is not None:
                name = graph.initializers[k].held_as
                grads[name] = grads[name] + tensor.grad if name in grads else tensor.grad
        return loss.detach(), whole_tensors(grads, graph.regions)

    def difference(self, graph: Graph, plain: tuple[Tensor, dict[str, Tensor]]) -> str:
        """In words; none where there is none but rounding."""
        (loss, grads), (wanted, all_wanted) = self.result(graph), plain
        if not torch.isclose(loss, wanted, rtol=ROUNDING, atol=ROUNDING):
            return f"the loss is {float(loss)} instead of {float(wanted)}"
        if grads.keys() != all_wanted.keys():
            return f"{sorted(grads.keys() ^ all_wanted.keys())} have gradients in one of both alone"
        whole = [each[each.abs().isfinite()].abs() for each in all_wanted.values()]
        scale = max((float(each.max()) for each in whole if each.numel()), default=0.0)
        for k, grad in grads.items():
            near = torch.isclose(grad, all_wanted[k], rtol=ROUNDING, atol=ROUNDING * scale, equal_nan=True)
            if not bool(near.all()):
                return f"the gradient of {k} is another in {int((~near).sum())} of {grad.numel()} elements"
        return ""


def sampled_steps(operator: OpInfo, most: int) -> Iterator[SampledStep]:
    """Those of an operator that can be captured, and are deterministic; small and unlike ones first."""
    dtype = torch.float64 if torch.float64 in operator.dtypes else torch.int64
    if dtype not in operator.dtypes:
        return
    torch.manual_seed(0)
    samples = list(islice(operator.sample_inputs("cpu", dtype, requires_grad=False), LOOKED_AT))
    unlike = unlike_samples([((each.input, *each.args), each.kwargs) for each in samples], most)
    calls = [(operator.op, given) for given in unlike]
    calls += [(alias.op, given) for alias in operator.aliases for given in unlike[:2]]
    for op, given in calls:
        model = _with_gradients(op, given)
        if model is None:
            continue
        try:
            yield SampledStep(model, capture(model, _difference, ((GIVEN,), GIVEN)))
        except NetSplitError:
            continue


def _with_gradients(op: Callable[..., Any], given: Any) -> CallsOperator | None:
    """The call with gradients of all tensors, of the first, or of none, as torch has them. None: it takes no
    copies of the sample's tensors, as `as_strided` beyond their elements."""
    for trained in (99, 1, 0):
        try:
            model = CallsOperator(op, given, trained)
            loss = model(GIVEN)
            if loss.requires_grad:
                loss.backward()
            model.zero_grad(set_to_none=True)
            return model
        except (RuntimeError, NotImplementedError):
            continue
    return None


def _difference(said: Tensor, target: Tensor) -> Tensor:
    return (said - target).sum()


def called_here(node: Node) -> bool:
    """Whether it is of the sampled operator, and not what is done with what that makes."""
    return "/operator_samples.py" not in node.source or node.source.endswith(_CALL)


def kind_of(node: Node, graph: Graph) -> str:
    """The call with the shapes of what it is given: two of one kind are cut alike."""
    given = {k: f"{v.dtype}{list(v.shape)} {v.order}" for k, v in graph.variables.items() if k in node.inputs}
    said = f"{node.op} {node.args} {node.kwargs}"
    for k, shape in given.items():
        said = said.replace(repr({"var": k}), shape)
    return said


def _tensors(made: Any) -> list[Tensor]:
    return [each for each in tree_flatten(made)[0] if isinstance(each, Tensor) and each.numel()]


def unlike_samples(samples: list[Any], most: int) -> list[Any]:
    """A few samples that have most of what is said in all: ranks, dtypes, values of other arguments."""
    said = [(each, _said(each)) for each in samples if 0 < _elements(each) <= MOST_ELEMENTS]
    said.sort(key=lambda each: _elements(each[0]))
    chosen: list[Any] = []
    known: set[Any] = set()
    while said and len(chosen) < most:
        best = max(range(len(said)), key=lambda i: len(said[i][1] - known))
        sample, own = said.pop(best)
        if own <= known:
            break
        chosen.append(sample)
        known |= own
    return chosen


def _said(sample: Any) -> set[Any]:
    args, kwargs = sample
    named = [*enumerate(args), *kwargs.items()]
    tensors = {
        (name, tuple(t.shape) if t.ndim < 5 else t.ndim, 1 in t.shape)
        for name, each in named
        for t in tree_flatten(each)[0]
        if isinstance(t, Tensor)
    }
    others = {(name, repr(each)) for name, each in named if not isinstance(each, Tensor | list | tuple)}
    lists = {
        (name, repr(each))
        for name, each in named
        if isinstance(each, list | tuple) and "tensor" not in repr(each)
    }
    ranks = {(name, t.ndim) for name, each in named for t in tree_flatten(each)[0] if isinstance(t, Tensor)}
    return tensors | others | lists | ranks


def _elements(sample: Any) -> int:
    return sum(each.numel() for each in tree_flatten(sample)[0] if isinstance(each, Tensor))


def sizes_to_try(size: int) -> list[tuple[tuple[int, ...], int]]:
    """Sizes of unlike parts with blocks: of two parts, and of three, and of two parts of two blocks."""
    tried: list[tuple[tuple[int, ...], int]] = [((1, size - 1), 1)]
    if size > 2:
        tried.append(((size - 2, 1, 1), 1))
    if size > 3 and size % 2 == 0:
        tried.append(((size // 2 - 1, 1), 2))
    return tried
