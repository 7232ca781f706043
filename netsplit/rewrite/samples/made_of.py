"""What an operator makes of samples, and of totals over them: linear in these, or something else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from netsplit.graph.arguments import references
from netsplit.graph.ir import CALL, Graph
from netsplit.rewrite.samples.crossing import operator_kinds
from netsplit.rewrite.ways import SplitCall

__all__ = ["ADDED", "CASTS", "PRODUCTS", "QUOTIENTS", "VIEWS", "MadeOf", "made_of", "most_of"]


class MadeOf(IntEnum):
    """What a variable is made of; an operator's outputs of what is the greatest among its inputs."""

    CONSTANT = 0  # nothing of the batch but its shape
    SAMPLES = 1
    TOTAL = 2  # linear in samples of other numbers, as a sum or a mean over them is
    MIXED = 3


VIEWS = operator_kinds(
    "view reshape _unsafe_view flatten unflatten ravel squeeze unsqueeze permute transpose swapaxes swapdims "
    "movedim moveaxis t mT numpy_T expand expand_as broadcast_to select slice narrow unbind split "
    "split_with_sizes chunk index_select"
)
_LINEAR = VIEWS | operator_kinds(
    "add add_ sub sub_ rsub subtract neg sum mean clone detach alias contiguous lift_fresh_copy cat stack"
)
ADDED = operator_kinds("add add_ sub sub_ subtract rsub")
CASTS = operator_kinds("to _to_copy type_as")
PRODUCTS = operator_kinds("mul mul_ multiply matmul mm bmm mv dot vdot inner linear addmm")
QUOTIENTS = operator_kinds("div div_ divide true_divide")


def most_of(names: Iterable[str], made: Mapping[str, MadeOf]) -> MadeOf:
    """The greatest of these variables."""
    return max((made.get(k, MadeOf.CONSTANT) for k in names), default=MadeOf.CONSTANT)


def made_of(graph: Graph, call: SplitCall, k: str, made: Mapping[str, MadeOf]) -> MadeOf:
    """What an output is made of, if the operator itself takes no total."""
    node = call.node
    most = most_of(node.inputs, made)
    if most is not MadeOf.TOTAL or node.op.startswith(CALL):
        return most
    dtype = graph.variables[k].dtype
    linear = node.kind in _LINEAR or (node.kind in CASTS and "float" in dtype)
    if node.kind in PRODUCTS:
        factors = (name for tag, name in references([*node.args, *node.kwargs.values()]) if tag == "var")
        linear = sum(made.get(each, MadeOf.CONSTANT) > MadeOf.CONSTANT for each in factors) == 1
    elif node.kind in QUOTIENTS:
        linear = _of(call, "other", made) is MadeOf.CONSTANT
    elif node.kind == "index_select":
        linear = _of(call, "index", made) is MadeOf.CONSTANT
    elif node.kind == "where":
        linear = _of(call, "condition", made) is MadeOf.CONSTANT
    return MadeOf.TOTAL if linear else MadeOf.MIXED


def _of(call: SplitCall, argument: str, made: Mapping[str, MadeOf]) -> MadeOf:
    return most_of((name for tag, name in references(call[argument]) if tag == "var"), made)
