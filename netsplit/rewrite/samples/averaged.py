"""Whether totals over samples are sums or means: micro-batches take the mean of their losses, of both.

l.mean() ──► mean     l.sum() ──► sum ──/ len(l)──► either     mean + sum: no mean of what micro-batches have

On samples of which the sum is 0 (those above a limit, those of a class that is not there) no value shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from math import inf, isfinite, prod
from typing import TypeAlias

from netsplit.graph.arguments import references
from netsplit.graph.ir import CALL
from netsplit.rewrite.samples.crossing import OF_CLASSES, first_tensor, operator_kinds
from netsplit.rewrite.samples.made_of import ADDED, PRODUCTS, QUOTIENTS, VIEWS
from netsplit.rewrite.samples.some import PIECES
from netsplit.rewrite.ways import SplitCall

__all__ = [
    "UNSURE",
    "Averaged",
    "Factors",
    "averaged",
    "by_weights",
    "ignores_targets",
    "is_loss",
    "is_mean",
    "sum_beside_mean",
]

Averaged: TypeAlias = frozenset[tuple[str, int]]
"""Of a total: ("", 0) where a mean is in it; operators that take a sum, and of how many elements; and
("", 2) where something is in it of which that is not known."""

_MEAN = ("", 0)
_VIEWED = ("", 1)  # a total of samples in other places, which is still to be added up
UNSURE = frozenset([("", 2)])
_BY_MEAN, _BY_SUM = 1, 2  # as operators have their argument `reduction`
_LARGEST = 2.0**53  # numbers above count no elements
_IGNORED = -100  # the target that they leave out where they are told none
_SCALED = operator_kinds("mul mul_ multiply")
_RESHAPED = VIEWS - PIECES - operator_kinds("expand expand_as broadcast_to index_select") | operator_kinds(
    "clone detach alias contiguous lift_fresh_copy neg to _to_copy"
)
"""What makes of every element one, whatever its place."""
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
        shaped: that have an element for each sample.
        counting: the number of samples, as sums of such.
        fixed: operators whose numbers are known to be the same of any number of samples.
    """

    learned: Collection[str]
    shaped: Set[str]
    counting: Collection[str]
    fixed: Collection[str] = ()


def averaged(
    call: SplitCall,
    given: Mapping[str, Averaged],
    taken: bool,
    beside: bool,
    samples: int,
    factors: Factors,
) -> Averaged:
    """What the output of an operator has of sums and means over samples, as far as is known.

    Args:
        given: of its inputs that are totals.
        taken: the operator takes a total of samples itself.
        beside: it has samples beside totals, as in what is added to each of them.
        samples: of the graph's batch.
    """
    node = call.node
    if node.op.startswith(CALL):
        return UNSURE
    if taken:
        return _taken(call, samples)
    made = frozenset[tuple[str, int]]().union(*(given.values()))
    if beside:
        made |= _added(call, samples)
    if _VIEWED in made and not _scales_all(call):
        return _added_up(call, made) if node.kind in ("mean", "sum") else made - {_VIEWED} | UNSURE
    if node.kind in PRODUCTS - _SCALED:
        others = [k for tag, k in references(node.args) if not (tag == "var" and k in given)]
        return _by_tensors(made, others, factors)
    return _times(call, given, made, samples, factors) if node.kind in _SCALED | QUOTIENTS else made


def _taken(call: SplitCall, samples: int) -> Averaged:
    node = call.node
    name = first_tensor(call) or next(iter(node.inputs), "")  # of einsum, whose equation comes first
    if not name:
        return UNSURE
    if node.kind in VIEWS:
        return frozenset([_VIEWED])
    if node.kind in ADDED:
        return _added(call, samples)
    told = _BY_MEAN if node.kind == "mean" else _BY_SUM if node.kind in _SUMS else None
    reduced = call.arguments.get("reduction") if is_loss(call) else told
    added = next((v for arg in ("source", "src") for _, v in references(call.arguments.get(arg))), name)
    if reduced == _BY_SUM:
        return frozenset([(node.name, prod(call.layouts[added].shape))])
    return frozenset([_MEAN]) if reduced == _BY_MEAN else UNSURE


def _added(call: SplitCall, samples: int) -> Averaged:
    """Of a sum of single samples' numbers; or of some samples and others, or totals, place by place."""
    if call.output:
        return frozenset([_VIEWED])
    return frozenset([(call.node.name, samples)]) if samples > 1 else UNSURE


def _added_up(call: SplitCall, made: Averaged) -> Averaged:
    """Of what has samples in places that are still to be added up, some of which a mean may go over first.

    Totals that each place has are added up as often as there are samples: a mean is a sum then.
    """
    rest = made - {_VIEWED}
    if call.node.kind == "mean":
        return rest | {_VIEWED if call.output else _MEAN}
    summed = frozenset([(call.node.name, prod(call.layouts[first_tensor(call)].shape))])
    return summed if rest <= {_MEAN} else summed | UNSURE


def _scales_all(call: SplitCall) -> bool:
    """Whether it does the same with every place, and leaves none out."""
    if call.node.kind in _SCALED | QUOTIENTS:
        tensors = [call.shape(place) for place in call.tensors]
        return sum(prod(shape) > 1 for shape in tensors) == 1
    return call.node.kind in ADDED | _RESHAPED


def _by_tensors(made: Averaged, others: list[str], factors: Factors) -> Averaged:
    """Of totals times what is no total: a sum times what is learned is one whatever the values, and a mean
    is one times whatever has no element for each sample."""
    if any(k in factors.learned for k in others) or not made:
        return made
    return made if made == {_MEAN} and factors.shaped.isdisjoint(others) else UNSURE


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
            if divided:  # of a mean it would be less than one
                return UNSURE if {_MEAN, *UNSURE} & made else frozenset([_MEAN])
            return counted if made else made
        return _by_tensors(made, [k], factors)
    factor = next((each for each in operands if isinstance(each, int | float)), None)
    if factor is None:
        return UNSURE
    if not factor:
        return frozenset()
    if not isfinite(factor):
        return UNSURE
    over = float(factor) if divided else 1 / float(factor) if abs(factor) > 1 / _LARGEST else inf
    named = (each[0] and _may_average(over, each[1], samples) for each in made)
    return frozenset(_MEAN if mean else each for each, mean in zip(made, named, strict=True))


def is_mean(own: Averaged) -> bool:
    """Whether all in it is known to be means over samples."""
    return own == {_MEAN}


def has_mean(own: Averaged) -> bool:
    """Whether a mean is in it, or what may be one."""
    return _MEAN in own or bool(own & UNSURE)


def is_summed(own: Averaged) -> bool:
    """Whether all samples in it are added up, and none are still to be."""
    return _VIEWED not in own


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
    if not 0 < abs(over) < _LARGEST:
        return False
    whole = round(abs(over))
    return abs(abs(over) - whole) < 1e-6 * whole and whole % samples == 0 and size % whole == 0
