"""Weight gradients put off are the gradients that autograd gives, bit for bit."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from netsplit.graph import WeightGradients, capture, deferrable_nodes, initial_values, rebuild
from netsplit.graph.deferral.deferred import CALLS
from netsplit.graph.operators import resolve
from tests.cover import covering
from tests.nets import CASES


def _sum_of_squares(y: Tensor, t: Tensor) -> Tensor:
    return (y * y).sum() * t.sum()


def _graphs(model: nn.Module, loss: Any, inputs: tuple[Tensor, ...], target: Tensor) -> list[Any]:
    """Loss and gradients of: the rebuilt module, the deferrable one, and its backward in two parts."""
    graph = capture(model, loss, (inputs, target))
    kinds: list[Any] = []
    untouched = model
    for mode in ("plain", "whole", "split"):
        model = deepcopy(untouched)
        module = rebuild(graph, initial_values(model, graph, loss), deferrable=mode != "plain")
        values = []
        for _ in range(2):
            value = module(*inputs, target)
            values.append(value.detach().clone())
            if mode == "split":
                queue = WeightGradients()
                with queue.collect():
                    torch.autograd.backward([value], [torch.ones_like(value)])
                assert len(queue) == len(deferrable_nodes(graph))
                queue.run()
                assert len(queue) == 0
            else:
                value.backward()
        kinds.append((values, {k: p.grad for k, p in model.named_parameters()}))
    return kinds


def _assert_equal(graphs: list[Any]) -> None:
    (values, gradients), *others = graphs
    for other_values, other in others:
        assert all(torch.equal(a, b) for a, b in zip(values, other_values, strict=True))
        for key, grad in gradients.items():
            assert (grad is None) == (other[key] is None), key
            assert grad is None or torch.equal(grad, other[key]), key


@covering(name=CASES, dtype=[torch.float32, torch.float64])
def test_models_train_the_same_whole_and_in_two_parts(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    inputs = tuple(t.to(dtype) if t.is_floating_point() else t for t in case.inputs)
    graphs = _graphs(case.fresh().to(dtype), case.loss, inputs, case.targets)
    _assert_equal(graphs)
    assert any(grad is not None for grad in graphs[0][1].values())


@dataclass(frozen=True)
class _Call:
    """An operator's call on an input x and leaves."""

    op: str
    x: Tensor
    leaves: dict[str, Tensor]
    arguments: Callable[..., tuple[Any, ...]]  # of x and the leaves

    def gradients(self, mode: str, x_needs: bool, autocast: bool) -> tuple[Tensor | None, ...]:
        x = self.x.clone().requires_grad_(x_needs)
        leaves = {k: nn.Parameter(t.clone()) for k, t in self.leaves.items()}
        queue = WeightGradients()
        for _ in range(2):
            call = resolve(self.op) if mode == "plain" else CALLS[self.op.split(".")[1]]
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y = call(*self.arguments(x, **leaves))
            loss = (y * y).sum()
            if mode == "split":
                with queue.collect():
                    loss.backward()
                assert len(queue) == 1
                queue.run()
            else:
                loss.backward()
        return y.detach(), x.grad, *(p.grad for p in leaves.values())


_DTYPES = st.sampled_from([torch.float32, torch.float64])


@st.composite
def _convolutions(draw: st.DrawFn) -> _Call:
    dim, groups, dtype = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2])), draw(_DTYPES)
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(dim))
    channels, made = 2 * draw(st.integers(1, 2)), 2 * draw(st.integers(1, 2))
    dilation, padding, stride = (draw(st.integers(low, low + 1)) for low in (1, 0, 1))
    leaves = {"weight": torch.randn(made, channels // groups, *kernel, dtype=dtype)}
    if draw(st.booleans()):
        leaves["bias"] = torch.randn(made, dtype=dtype)
    sizes = tuple(draw(st.integers(5, 8)) for _ in range(dim))
    x = torch.randn(*draw(st.sampled_from([(2,), (2,), ()])), channels, *sizes, dtype=dtype)
    if draw(st.booleans()) and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    rest = ([stride] * dim, [padding] * dim, [dilation] * dim, groups)
    return _Call(f"aten.conv{dim}d.default", x, leaves, lambda x, weight, bias=None: (x, weight, bias, *rest))


@st.composite
def _products(draw: st.DrawFn) -> _Call:
    dtype = draw(_DTYPES)
    n, k, m = (draw(st.integers(1, 9)) for _ in range(3))
    lead = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    kept, bias = torch.randn(m, k, dtype=dtype), torch.randn(m, dtype=dtype)  # as a linear layer has it
    w, x, many = (
        torch.randn(k, m, dtype=dtype),
        torch.randn(n, k, dtype=dtype),
        torch.randn(*lead, n, k, dtype=dtype),
    )
    linear, matmul, mm = "aten.linear.default", "aten.matmul.default", "aten.mm.default"
    return draw(
        st.sampled_from(
            [
                _Call(linear, many, {"w": kept, "b": bias}, lambda x, w, b: (x, w, b)),
                _Call(linear, many, {"w": kept}, lambda x, w: (x, w)),
                _Call(linear, x.t().contiguous(), {"w": kept, "b": bias}, lambda x, w, b: (x.t(), w, b)),
                _Call(linear, many, {"w": w}, lambda x, w: (x, w.t())),
                _Call(matmul, many, {"w": w}, lambda x, w: (x, w)),
                _Call(matmul, many, {"w": kept}, lambda x, w: (x, w.t())),
                _Call(mm, x.t().contiguous(), {"w": w}, lambda x, w: (x.t(), w)),
                _Call("aten.addmm.default", x, {"w": w, "b": bias}, lambda x, w, b: (b, x, w)),
            ]
        )
    )


@settings(max_examples=80, deadline=None)
@given(st.one_of(_convolutions(), _products()), st.booleans(), st.booleans())
def test_any_call_gives_the_same_bits_whole_and_in_two_parts(
    call: _Call, x_needs: bool, autocast: bool
) -> None:
    plain = call.gradients("plain", x_needs, autocast)
    for mode in ("whole", "split"):
        for expected, deferred in zip(plain, call.gradients(mode, x_needs, autocast), strict=True):
            assert (expected is None) == (deferred is None)
            assert expected is None or torch.equal(expected, deferred)


class _Products(nn.Module):
    """Matrix products with weights, through views too, and others that are not put off."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 6))
        self.stack = nn.Parameter(torch.randn(2, 6, 6))
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.w
        x = torch.tanh(torch.mm(self.w.t(), x.t())).t()
        x = torch.addmm(self.bias, x, self.stack[0], alpha=2)
        x = torch.addmm(self.bias, x, self.stack[1])
        both = torch.bmm(x.unsqueeze(0).expand(2, -1, -1), self.stack)
        return torch.tanh(both) @ self.w.transpose(0, 1)


def test_products_with_weights_and_views_of_them_are_put_off() -> None:
    model, x, t = _Products(), torch.randn(4, 6), torch.randn(2)
    graph = capture(model, _sum_of_squares, (x, t))
    kinds = sorted(graph.nodes[name].kind for name in deferrable_nodes(graph))
    assert kinds == ["addmm", "matmul", "matmul"]
    graphs = _graphs(model, _sum_of_squares, (x,), t)
    for (_, gradients), (_, others) in pairwise(graphs):
        for key, grad in gradients.items():
            torch.testing.assert_close(grad, others[key])


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.idle = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.shared(x))
        self.idle(y).detach()
        return self.shared(torch.tanh(self.frozen(y)))


def _twice(**options: bool) -> tuple[nn.Module, Any, Tensor, Tensor]:
    torch.manual_seed(3)
    model, x, t = _Twice(), torch.randn(4, 6), torch.randn(2)
    graph = capture(model, _sum_of_squares, (x, t))
    return model, rebuild(graph, initial_values(model, graph), **options), x, t


def test_a_frozen_weight_and_one_that_the_loss_does_not_reach_put_nothing_off() -> None:
    model, x, t = _Twice(), torch.randn(4, 6), torch.randn(2)
    graph = capture(model, _sum_of_squares, (x, t))
    nodes = [graph.nodes[name] for name in deferrable_nodes(graph)]
    assert [node.initializers for node in nodes] == [("shared.weight", "shared.bias")] * 2


def test_the_queue_counts_calls_and_computes_nothing_before_it_runs() -> None:
    model, module, x, t = _twice(deferrable=True)
    queue = WeightGradients()
    for step in (1, 2):
        loss = module(x, t)
        with queue.collect():
            loss.backward()
        assert len(queue) == 2 * step
    assert model.shared.weight.grad is None
    queue.run()
    assert model.shared.weight.grad is not None


def test_after_an_error_the_queue_is_as_it_was_and_may_collect_again() -> None:
    _, module, x, t = _twice(deferrable=True)
    queue, loss = WeightGradients(), module(x, t)
    with pytest.raises(RuntimeError, match="grad can be implicitly created"), queue.collect():
        torch.autograd.backward([loss, loss.expand(2)], [torch.ones(()), None])
    with pytest.raises(RuntimeError, match="second time"), queue.collect():
        _backward_twice(loss)
    assert len(queue) == 0
    with queue.collect(), pytest.raises(RuntimeError, match="already"), WeightGradients().collect():
        pass


def _backward_twice(loss: Tensor) -> None:
    loss.backward()
    loss.backward()
