"""How gradients lie in memory as a backward hands them on, as far as it is known.

What turns dimensions answers a view of what it is given; what puts dimensions together is a view only where
they lie within one another, else its backward makes a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from netsplit.graph.ir import Node, Variable

__all__ = [
    "Strides", "lies_in", "packed_strides", "strides_of_new", "strides_of_sum", "strides_through", "viewed",
]  # fmt: skip

Strides: TypeAlias = tuple[int, ...]

_TURNED = frozenset({"T", "mT", "numpy_T", "permute", "swapaxes", "t", "transpose"})
_IN_OTHER_SIZES = frozenset(
    {"flatten", "reshape", "reshape_as", "squeeze", "unflatten", "unsqueeze", "view", "view_as"}
)
_PACKED = frozenset(
    {"addmm", "baddbmm", "bmm", "layer_norm", "linear", "log_softmax", "matmul", "mm", "native_layer_norm"}
    | {
        "adaptive_avg_pool2d",
        "chunk",
        "mean",
        "select",
        "slice",
        "softmax",
        "split",
        "split_with_sizes",
        "unbind",
    }
)
"""Operators that make gradients in the plain order, however those lie that come."""
_AS_READ = frozenset(
    {"avg_pool2d", "batch_norm", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"}
    | {"conv_transpose3d", "convolution", "max_pool2d"}
)
"""Operators that make gradients that lie as what they read."""
_ELEMENTWISE = frozenset(
    {
        "div",
        "dropout",
        "elu",
        "exp",
        "gelu",
        "hardswish",
        "leaky_relu",
        "mul",
        "native_dropout",
        "neg",
        "relu",
    }
    | {"relu_", "rsqrt", "sigmoid", "silu", "softplus", "tanh"}
)
"""Operators that make gradients that lie as those that come."""


def packed_strides(shape: Sequence[int]) -> Strides:
    """Of memory in the plain order."""
    strides, step = [0] * len(shape), 1
    for d in reversed(range(len(shape))):
        strides[d] = step
        step *= max(shape[d], 1)
    return tuple(strides)


def lies_in(shape: Sequence[int], strides: Strides, wanted: Strides) -> bool:
    """Whether it lies so, but for dimensions of one element."""
    return all(n == 1 or a == b for n, a, b in zip(shape, strides, wanted, strict=True))


def viewed(shape: Sequence[int], strides: Strides, sizes: Sequence[int]) -> Strides | None:
    """The strides of the same elements in other sizes; None where that takes a copy."""
    if 0 in shape:
        return packed_strides(sizes)
    runs: list[tuple[int, int]] = []  # elements that lie at even distances, and the distance
    for n, step in zip(shape, strides, strict=True):
        if n > 1 and runs and runs[-1][1] == n * step:
            runs[-1] = runs[-1][0] * n, step
        elif n > 1:
            runs.append((n, step))
    made = [1] * len(sizes)
    count = step = 1
    for d in reversed(range(len(sizes))):
        if sizes[d] == 1:
            continue
        if count == 1:
            count, step = runs.pop()
        if count % sizes[d]:
            return None
        made[d] = step
        count, step = count // sizes[d], step * sizes[d]
    return tuple(made)


def strides_through(
    node: Node, come: Strides | None, made: Sequence[int], read: Sequence[int]
) -> tuple[Strides | None, bool]:
    """Of a gradient that a node hands on, from an output of sizes `made` to an input of sizes `read`;
    and whether that takes a copy."""
    if come is None:
        return None, False
    if node.kind in _TURNED and len(made) == len(read):
        strides = [0] * len(read)
        for step, d in zip(come, _dims_read(node, len(made)), strict=True):
            strides[d] = step
        return tuple(strides), False
    if node.kind in _IN_OTHER_SIZES:
        strides_read = viewed(made, come, read)
        return (packed_strides(read), True) if strides_read is None else (strides_read, False)
    return (come if tuple(made) == tuple(read) or len(made) == len(read) else None), False


def strides_of_new(node: Node, come: Strides | None, made: Sequence[int], read: Variable) -> Strides | None:
    """Of the gradient that a node makes of what it read."""
    if node.kind in _PACKED:
        return packed_strides(read.shape)
    if node.kind in _AS_READ:
        return read.strides
    if (
        node.kind in _ELEMENTWISE
        and tuple(made) == tuple(read.shape)
        and come is not None
        and _fills(made, come)
    ):
        return come
    return None


def strides_of_sum(shape: Sequence[int], first: Strides) -> Strides:
    """Of a sum in new memory, which fills it: its dimensions in the order of its first term, which may be a
    part of more."""
    strides, step = [0] * len(shape), 1
    for d in sorted(range(len(shape)), key=lambda d: first[d]):
        strides[d] = step
        step *= max(shape[d], 1)
    return tuple(strides)


def _fills(shape: Sequence[int], strides: Strides) -> bool:
    """Whether every element has a place of its own, and none is left over."""
    step = 1
    for one, n in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if one != step:
            return False
        step *= n
    return True


def _dims_read(node: Node, count: int) -> Sequence[int]:
    """Of every dimension of a node's output: which of its input's it is."""
    dims = list(range(count))
    if node.kind in ("T", "t", "numpy_T"):
        dims.reverse()
    elif node.kind == "permute":
        dims = [d % count for d in node.args[1]]
    else:
        a, b = (-2, -1) if node.kind == "mT" else node.args[1:3]
        dims[a], dims[b] = dims[b], dims[a]
    return dims
