"""Which variables have memory of their own, and which gradients only that of the rows that were read."""

from __future__ import annotations

from netsplit.graph.ir import INITIALIZER, Graph, Node

__all__ = [
    "HANDING_ON", "gives_sparse_gradients", "hands_on", "sparse_gradients", "storage_bytes", "storage_of",
]  # fmt: skip

HANDING_ON = frozenset(["aten.alias.default", "aten.split_with_sizes.default", "aten.cat.default"])
"""Operators by which initializers, or what they are cut in or put together of, come to others as they are."""

_LOSSES_IN_FULL = frozenset(
    f"aten.{kind}.default"
    for kind in ("binary_cross_entropy", "mse_loss", "smooth_l1_loss", "soft_margin_loss")
)


def storage_of(graph: Graph, k: str) -> str:
    """What memory `k` lives in: itself, or what it is a view of or written over (see `Variable.alias_of`)."""
    return graph.variables[k].alias_of or k


def storage_bytes(graph: Graph) -> dict[str, int]:
    """Bytes of memory that every storage brings along: 0 for views, and for what lives in an initializer.

    The result of some losses has that of what they take the mean of, in which torch makes it.
    """
    nbytes = {k: 0 if variable.alias_of else variable.nbytes for k, variable in graph.variables.items()}
    for node in graph:
        if node.op in _LOSSES_IN_FULL and node.inputs and nbytes[node.outputs[0]]:
            nbytes[node.outputs[0]] = graph.variables[node.inputs[0]].nbytes
    return nbytes | {INITIALIZER + name: 0 for name in graph.initializers}


def hands_on(graph: Graph) -> bool:
    """Whether an operator may hand on an initializer (`operators.unchanging` says which). Needs no torch."""
    return any(node.op in HANDING_ON and node.initializers for node in graph)


_SPARSE = {"embedding": 4, "embedding_bag": 5, "_embedding_bag": 5, "_embedding_bag_forward_only": 5}
"""Operators of `aten` to the place of their argument `sparse`."""


def gives_sparse_gradients(node: Node) -> bool:
    """Whether the gradient of its weight holds the rows that were looked up alone. Needs no torch."""
    place = _SPARSE.get(node.op.removeprefix("aten.").partition(".")[0])
    if place is None:
        return False
    given = node.args[place] if len(node.args) > place else node.kwargs.get("sparse")
    return given is True


def sparse_gradients(graph: Graph) -> list[str]:
    """Trained initializers whose gradients are sparse: all that read them give such ones."""
    sparse: dict[str, bool] = {}
    for node in graph:
        for k in node.initializers:
            if graph.initializers[k].requires_grad:
                sparse[k] = sparse.get(k, True) and gives_sparse_gradients(node)
    return [k for k, alone in sparse.items() if alone]
