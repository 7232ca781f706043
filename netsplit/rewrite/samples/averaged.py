"""Whether totals over samples are sums or means: micro-batches take the mean of their losses, of both.

l.mean() ──► mean     l.sum() ──► sum ──/ len(l)──► either     mean + sum: no mean of what micro-batches have

On samples of which the sum is 0 (those above a limit, those of a class that is not there) no value shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from netsplit.graph.arguments import references
from netsplit.graph.ir import CALL
from netsplit.rewrite.samples.crossing import OF_CLASSES, first_tensor, operator_kinds
from netsplit.rewrite.samples.made_of import PRODUCTS, QUOTIENTS, VIEWS
from netsplit.rewrite.ways import SplitCall

__all__ = ["Averaged", "Factors", "averaged", "by_weights", "ignores_targets", "is_loss", "sum_beside_mean"]

Averaged: TypeAlias = frozenset[tuple[str, int]]
"""Of a total: ("", 0) where a mean is in it; operators that take a sum, and of how many elements."""

_MEAN = ("", 0)
_VIEWED = ("", 1)  # a total of samples in other places, which is still to be added up
_BY_MEAN, _BY_SUM = 1, 2  # as operators have their argument `reduction`
_IGNORED = -100  # the target that they leave out where they are told none
_SCALED = operator_kinds("mul mul_ multiply")
_SUMS = operator_kinds(
    "sum matmul mm bmm mv dot vdot inner einsum tensordot linear addmm addmv addbmm baddbmm "
    "index_add index_add_ scatter_add scatter_add_ scatter_reduce scatter_reduce_"
)


@dataclass(frozen=True)
class Factors:
    """Of variables and initializers that are made of no sample.

    Args:
        learned: that a parameter or a buffer is in, which may change: whatever their value, a sum times them
            is one.
        counting: the number of samples, as sums of what has an element for each.
        fixed: operators whose numbers are known to be the same of any number of samples.
    """

    learned: Collection[str]
    counting: Collection[str]
    fixed: Collection[str] = ()


def averaged(
    call: SplitCall, given: Mapping[str, Averaged], taken: bool, samples: int, factors: Factors
) -> Averaged:
    """What the output of an operator has of sums and means over samples, as far as is known.

    Args:
        given: of its inputs.
        taken: the operator takes a total of samples itself.
        samples: of the graph's batch.
    """
    node, name = call.node, "" if call.node.op.startswith(CALL) else first_tensor(call)
    if taken:
        name = name or next(iter(node.inputs), "")  # of einsum, whose equation comes first
        if not name or node.op.startswith(CALL):
            return frozenset()
        told = _BY_MEAN if node.kind == "mean" else _BY_SUM if node.kind in _SUMS else None
        if node.kind in VIEWS:
            return frozenset([_VIEWED])
        reduced = call.arguments.get("reduction") if is_loss(call) else told
        added = next((v for arg in ("source", "src") for _, v in references(call.arguments.get(arg))), name)
        summed = frozenset([(node.name, prod(call.layouts[added].shape))])
        return frozenset([_MEAN]) if reduced == _BY_MEAN else summed if reduced == _BY_SUM else frozenset()
    made = frozenset[tuple[str, int]]().union(*(given.get(k, frozenset()) for k in node.inputs))
    if node.op.startswith(CALL):
        return frozenset()
    if _VIEWED in made and node.kind in ("mean", "sum"):
        size = prod(call.layouts[name].shape)
        return (made - {_VIEWED}) | {_MEAN if node.kind == "mean" else (node.name, size)}
    if node.kind in PRODUCTS - _SCALED:  # a sum times what is learned is one whatever the values
        others = [k for tag, k in references(node.args) if not (tag == "var" and k in given)]
        return made if any(k in factors.learned for k in others) else frozenset()
    return _times(call, given, made, samples, factors) if node.kind in _SCALED | QUOTIENTS else made


def _times(
    call: SplitCall, given: Mapping[str, Averaged], made: Averaged, samples: int, factors: Factors
) -> Averaged:
    """Of totals times what is none, or by it."""
    if call.node.name in factors.fixed:
        return made
    divided = call.node.kind in QUOTIENTS
    operands = [call["other"]] if divided else [call["self"], call["other"]]
    for tag, k in references(operands):
        if tag == "var" and k in given:
            continue
        if k in factors.counting:
            counted = frozenset([(call.node.name, 0)])
            return (frozenset([_MEAN]) if divided else counted) if made else made
        return made if k in factors.learned else frozenset()
    factor = next((each for each in operands if isinstance(each, int | float)), None)
    if not factor:
        return frozenset()
    over = float(factor) if divided else 1 / float(factor)
    named = (each[0] and _may_average(over, each[1], samples) for each in made)
    return frozenset(_MEAN if mean else each for each, mean in zip(made, named, strict=True))


def sum_beside_mean(own: Averaged) -> str:
    """The operator that takes a sum to which a mean is added; "" for none."""
    return next((name for name, _ in sorted(own) if name), "") if _MEAN in own else ""


def is_loss(call: SplitCall) -> bool:
    """Whether it is one of torch's: a value of each sample, or their sum or mean."""
    kind = call.node.kind
    return "_loss" in kind or kind.startswith(("binary_cross_entropy", "kl_div"))


def by_weights(call: SplitCall) -> bool:
    """Whether it is a mean over targets by the weights of their classes: divided by the sum of these.

    Targets that are probabilities are not weighed so.
    """
    return _over_targets(call) and call.has("weight") and call.rank("target") < call.rank("self")


def ignores_targets(call: SplitCall) -> bool:
    """Whether it is a mean over targets but for some that the user has told."""
    return _over_targets(call) and call["ignore_index"] != _IGNORED


def _over_targets(call: SplitCall) -> bool:
    return call.node.kind in OF_CLASSES and call["reduction"] == _BY_MEAN


def _may_average(over: float, size: int, samples: int) -> bool:
    """Whether what is divided by that may be a mean over samples, of a sum of so many elements."""
    whole = round(abs(over))
    return abs(abs(over) - whole) < 1e-6 * whole and whole % samples == 0 and size % whole == 0
