"""What backwards of operators make of the gradient that comes: itself, parts of it, or new memory."""

from __future__ import annotations

from netsplit.graph.ir import Node

__all__ = ["NO_GRADIENT", "PART_OF_GRADIENT", "SHAPED_AS", "gives_gradient_on"]

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
