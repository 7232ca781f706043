"""Whether totals over samples are sums or means: micro-batches take the mean of their losses, of both.

l.mean() ──► mean     l.sum() ──► sum ──/ len(l)──► either     mean + sum: no mean of what micro-batches have

On samples of which the sum is 0 (those above a limit, those of a class that is not there) no value shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TypeAlias

from netsplit.graph.arguments import references
from netsplit.graph.ir import CALL
from netsplit.rewrite.samples.crossing import first_tensor, operator_kinds
from netsplit.rewrite.samples.made_of import PRODUCTS, QUOTIENTS
from netsplit.rewrite.ways import SplitCall

__all__ = ["Averaged", "averaged", "by_weights", "ignores_targets", "is_loss", "sum_beside_mean"]

Averaged: TypeAlias = frozenset[tuple[str, int]]
"""Of a total: ("", 0) where a mean is in it; operators that take a sum, and of how many elements."""

_MEAN = ("", 0)
_BY_MEAN, _BY_SUM = 1, 2  # as operators have their argument `reduction`
_OF_CLASSES = operator_kinds("cross_entropy_loss nll_loss nll_loss_nd nll_loss2d")
_IGNORED = -100  # the target that they leave out where they are told none
_SCALED = operator_kinds("mul mul_ multiply")


def averaged(call: SplitCall, given: Mapping[str, Averaged], taken: bool, samples: int) -> Averaged:
    """What the output of an operator has of sums and means over samples, as far as is known.

    Args:
        given: of its inputs.
        taken: the operator takes a total of samples itself.
        samples: of the graph's batch.
    """
    node, name = call.node, "" if call.node.op.startswith(CALL) else first_tensor(call)
    if not name:
        return frozenset()
    if taken:
        told = {"mean": _BY_MEAN, "sum": _BY_SUM}.get(node.kind)
        reduced = call.arguments.get("reduction") if is_loss(call) else told
        summed = frozenset([(node.name, prod(call.layouts[name].shape))])
        return frozenset([_MEAN]) if reduced == _BY_MEAN else summed if reduced == _BY_SUM else frozenset()
    made = frozenset[tuple[str, int]]().union(*(given.get(k, frozenset()) for k in node.inputs))
    if node.kind in PRODUCTS - _SCALED:
        return frozenset()
    if node.kind not in _SCALED | QUOTIENTS:
        return made
    factor = call["other"]
    if next(references(factor), None) is not None or not factor:
        return frozenset()
    over = float(factor) if node.kind in QUOTIENTS else 1 / float(factor)
    return frozenset(each for each in made if each == _MEAN or not _may_average(over, each[1], samples))


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
    return call.node.kind in _OF_CLASSES and call["reduction"] == _BY_MEAN


def _may_average(over: float, size: int, samples: int) -> bool:
    """Whether what is divided by that may be a mean over samples, of a sum of so many elements."""
    whole = round(abs(over))
    return abs(abs(over) - whole) < 1e-6 * whole and whole % samples == 0 and size % whole == 0
