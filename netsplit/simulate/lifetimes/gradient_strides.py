"""How gradients lie in memory as a backward hands them on.

What turns dimensions answers a view of what it is given. What puts dimensions together is a
view only where they lie within one another, else its backward copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import torch

from netsplit.graph.ir import Node, Variable

__all__ = [
    "NO_GRADIENT", "PART_OF_GRADIENT", "SHAPED_AS", "Strides", "gives_gradient_on", "lies_in",
    "packed_strides", "strides_of_new", "strides_through",
]  # fmt: skip

_SAME_GRADIENT = frozenset(
    {"add", "add_", "alias", "clone", "contiguous", "detach", "expand", "expand_as", "flatten", "movedim"}
    | {"permute", "reshape", "reshape_as", "squeeze", "swapaxes", "t", "transpose", "unflatten", "unsqueeze"}
    | {"T", "mT", "numpy_T", "view", "view_as"}
)
"""Operators whose backward hands on the output's gradient itself, where the sizes are equal."""
_SAME_FOR_FIRST = frozenset({"addcdiv", "addcmul", "index_add", "scatter_add", "sub", "sub_"})
"""Those that do so to their first operand alone."""
_SAME_FOR_OTHERS = frozenset({"copy_"})
"""Those that do so to all but their first operand."""
PART_OF_GRADIENT = frozenset({"cat", "concat", "concatenate", "stack"})
"""Operators whose backward hands on views of the output's gradient."""
SHAPED_AS = frozenset({"expand_as", "reshape_as", "view_as"})
"""Operators that read of all but their first operand what it is like."""
NO_GRADIENT = frozenset({"empty_like", "full_like", "new_zeros", "new_ones", "ones_like", "zeros_like"})
"""Operators that read of a tensor what it is like."""


def gives_gradient_on(node: Node, k: str) -> bool:
    """Whether the gradient of k is that of the node's output itself, where they have one size."""
    first = [i for i, each in enumerate(node.args) if each == {"var": k}] == [0]
    return (
        node.kind in _SAME_GRADIENT
        or (node.kind in _SAME_FOR_FIRST and first)
        or (node.kind in _SAME_FOR_OTHERS and not first)
    )


Strides: TypeAlias = tuple[int, ...]

_TURNED = frozenset({"T", "mT", "numpy_T", "permute", "swapaxes", "t", "transpose"})
_IN_OTHER_SIZES = frozenset(
    {"flatten", "reshape", "reshape_as", "squeeze", "unflatten", "unsqueeze", "view", "view_as"}
)


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


def strides_through(
    node: Node, come: Strides, made: Sequence[int], read: Sequence[int]
) -> tuple[Strides, bool]:
    """Of a gradient that a node hands on, from an output of sizes `made` to an input of sizes `read`;
    and whether that takes a copy."""
    packed = packed_strides(read)
    if node.kind in _TURNED and len(made) == len(read):
        strides = [0] * len(read)
        for step, d in zip(come, _dims_read(node, len(made)), strict=True):
            strides[d] = step
        return tuple(strides), False
    if node.kind in _IN_OTHER_SIZES:
        strides_read = _viewed(tuple(made), come, tuple(read))
        return (packed, True) if strides_read is None else (strides_read, False)
    return (come if len(made) == len(read) else packed), False


def strides_of_new(node: Node, come: Strides, made: Variable, read: Variable) -> Strides:
    """Of the gradient that a node makes of what it read: a convolution's lies as that, others' as the
    gradient that comes, or in the plain order where the sizes differ."""
    if "conv" in node.kind or "max_pool" in node.kind:
        return read.strides
    return come if made.shape == read.shape else packed_strides(read.shape)


@lru_cache(maxsize=4096)
def _viewed(shape: tuple[int, ...], strides: Strides, sizes: tuple[int, ...]) -> Strides | None:
    """The strides of the same elements in other sizes; None where that takes a copy."""
    try:
        return torch.empty_strided(shape, strides, device="meta").view(sizes).stride()
    except RuntimeError:  # torch's word for it
        return None


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
