"""FLOPs and bytes of operators: against torch's own counter, against arithmetic by hand, and laws."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks._subjects import UNet
from benchmarks.predictor.models import convnext, mobilenet
from netsplit.graph import Graph, capture
from netsplit.graph.ir import Initializer, Node, Variable
from netsplit.profile.roofline import Pass, Work, node_work, operator_class
from tests.examples import tried

PRODUCTS = (
    "convolution", "pointwise convolution", "depthwise convolution", "transposed convolution", "matmul",
)  # fmt: skip


def one_node(op: str, given: list[Tensor], parameters: set[int], *rest: Any) -> tuple[Graph, Node]:
    """A graph of one operator on meta tensors, of which those at `parameters` are parameters.

    A tensor that requires a gradient gets one.
    """
    namespace, name, overload = op.split(".")
    result = getattr(getattr(getattr(torch.ops, namespace), name), overload)(*given, *rest)
    variables, initializers, args = {}, {}, []
    for i, tensor in enumerate(given):
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape)
        if i in parameters:
            initializers[f"p{i}"] = Initializer(f"p{i}", dtype, shape, True, tensor.requires_grad)
            args.append({"init": f"p{i}"})
        else:
            # A variable with a gradient comes from somewhere: here from another node's output, not fed.
            variables[f"v{i}"] = Variable(f"v{i}", dtype, shape, None, ("n",), tensor.requires_grad)
            args.append({"var": f"v{i}"})
    variables["y"] = Variable("y", "float32", tuple(result.shape), "n", (), result.requires_grad)
    node = Node("n", op, tuple(k for k in variables if k != "y"), ("y",), tuple(initializers), (*args, *rest))
    fed = tuple(k for k in variables if k != "y")
    return Graph({"n": node}, variables, fed, ("y",), initializers), node


def counted(run: Callable[[], Tensor]) -> tuple[int, int]:
    """FLOPs of forward and of backward, by torch's counter."""
    with FlopCounterMode(display=False) as forward:
        result = run()
    with FlopCounterMode(display=False) as backward:
        result.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


def meta(*shape: int, grad: bool = True) -> Tensor:
    return torch.empty(shape, device="meta", requires_grad=grad)


@settings(deadline=None, max_examples=tried(40))
@given(
    n=st.integers(1, 3), groups=st.integers(1, 4), cin=st.integers(1, 4), cout=st.integers(1, 4),
    side=st.integers(7, 12), tap=st.integers(1, 3), stride=st.integers(1, 2), dilation=st.integers(1, 2),
    transposed=st.booleans(), first=st.booleans(), frozen=st.booleans(),
)  # fmt: skip
def test_convolutions_are_as_torch_counts_them(
    n: int, groups: int, cin: int, cout: int, side: int, tap: int, stride: int, dilation: int,
    transposed: bool, first: bool, frozen: bool,
) -> None:  # fmt: skip
    """Any groups, strides, dilations, transposed or not, with and without gradients of either factor."""
    if first and frozen:
        return
    x = meta(n, groups * cin, side, side, grad=not first)
    shape = (groups * cin, cout, tap, tap) if transposed else (groups * cout, cin, tap, tap)
    w = meta(*shape, grad=not frozen)
    two = [stride] * 2, [1, 1], [dilation] * 2
    rest = (None, *two, transposed, [0, 0], groups)
    graph, node = one_node("aten.convolution.default", [x, w], {1}, *rest)
    forward, backward = counted(lambda: torch.ops.aten.convolution.default(x, w, *rest))
    work = node_work(graph, node)
    assert work.forward.flops == forward
    assert (
        work.input.flops + groups * work.weight.flops == backward
    )  # torch counts a group's gradient too often
    assert (work.input.flops == 0) == first
    assert work.weight.flops in (0, forward)
    assert (work.weight.flops == 0) == frozen
    assert operator_class(graph, node).endswith("convolution")


@settings(deadline=None, max_examples=tried(30))
@given(
    a=st.integers(1, 5),
    b=st.integers(1, 5),
    c=st.integers(1, 5),
    d=st.integers(1, 5),
    which=st.integers(0, 3),
)
def test_matrix_products_are_as_torch_counts_them(a: int, b: int, c: int, d: int, which: int) -> None:
    op, tensors, parameters = [
        ("aten.mm.default", [meta(a, b), meta(b, c)], {1}),
        ("aten.bmm.default", [meta(d, a, b), meta(d, b, c)], set[int]()),
        ("aten.addmm.default", [meta(c), meta(a, b), meta(b, c)], {0, 2}),
        ("aten.linear.default", [meta(d, a, b), meta(c, b), meta(c)], {1, 2}),
    ][which]
    graph, node = one_node(op, tensors, parameters)
    namespace, name, overload = op.split(".")
    forward, backward = counted(
        lambda: getattr(getattr(getattr(torch.ops, namespace), name), overload)(*tensors)
    )
    work = node_work(graph, node)
    bias = 0 if which < 2 else (a * c if which == 2 else d * a * c)
    assert work.forward.flops == forward + bias
    assert work.input.flops + work.weight.flops == backward + bias
    assert operator_class(graph, node) == "matmul"


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "unet": (partial(UNet, 1, 8), (2, 3, 16, 16)),
    "mobilenet": (partial(mobilenet, levels=2), (2, 3, 32, 32)),
    "convnext": (partial(convnext, (1, 1), 16), (2, 3, 16, 16)),
}


def step_of(name: str) -> tuple[nn.Module, Tensor, Tensor, Graph]:
    build, shape = MODELS[name]
    model, inputs = build(), torch.randn(shape)
    scores = model(inputs)
    targets = torch.zeros((scores.shape[0], *scores.shape[2:]), dtype=torch.int64)
    return model, inputs, targets, capture(model, nn.CrossEntropyLoss(), ((inputs,), (targets,)))


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_step_is_as_torch_counts_it(name: str) -> None:
    """Products alone, which are all that torch counts; biases, which it leaves out, are below 3 %."""
    model, inputs, targets, graph = step_of(name)
    forward, backward = counted(lambda: nn.functional.cross_entropy(model(inputs), targets))
    works = [(node, node_work(graph, node)) for node in graph if operator_class(graph, node) in PRODUCTS]
    assert sum(work.forward.flops for _, work in works) == pytest.approx(forward, rel=0.03)
    # torch counts the weight gradient of a convolution once for each group, over all groups
    weights = sum(work.weight.flops * (node.args[6] if len(node.args) > 6 else 1) for node, work in works)
    assert sum(work.input.flops for _, work in works) + weights == pytest.approx(backward, rel=0.03)


def test_attention_is_two_products_and_a_softmax_forward_and_half_as_much_again_twice_backward() -> None:
    n, heads, rows, keys, width = 2, 3, 16, 24, 8
    q, k, v = meta(n, heads, rows, width), meta(n, heads, keys, width), meta(n, heads, keys, width)
    graph, node = one_node("aten.scaled_dot_product_attention.default", [q, k, v], set())
    work = node_work(graph, node)
    products = 2 * n * heads * rows * keys * width * 2
    soft = 8 * n * heads * rows * keys
    assert work.forward.flops == products + soft
    assert work.input.flops == 2.5 * products + soft
    assert work.forward.nbytes == 4 * (2 * q.numel() + 2 * k.numel())


def test_bytes_of_simple_operators_by_hand() -> None:
    size = 4 * 2 * 3 * 4 * 4
    x, y = meta(2, 3, 4, 4), meta(2, 3, 4, 4)
    add = node_work(*one_node("aten.add.Tensor", [x, y], set()))
    assert add == Work(Pass(96, 3 * size), has_backward=True)  # gradients pass through
    small = node_work(*one_node("aten.add.Tensor", [x, meta(3, 1, 1)], {1}))
    assert small.input.nbytes > size  # a broadcast is summed up
    relu = node_work(*one_node("aten.relu.default", [x], set()))
    assert relu.forward.nbytes == 2 * size
    pool = node_work(*one_node("aten.max_pool2d.default", [x], set(), [2, 2], [2, 2]))
    assert pool.forward.nbytes == size + size // 4 + 8 * 24
    no_gradient = node_work(*one_node("aten.relu.default", [meta(2, 3, grad=False)], set()))
    assert no_gradient == Work(Pass(6, 2 * 24))
