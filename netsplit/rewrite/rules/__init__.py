"""One rule for each class of operators: along which dimensions it can be cut, and what that makes of it."""

from __future__ import annotations

from math import prod

from netsplit.rewrite.rules import products, reductions, shapes
from netsplit.rewrite.rules.shapes import FACTORIES, elementwise, is_elementwise
from netsplit.rewrite.ways import Rule, SplitCall, Ways

__all__ = ["RULES", "has_rule", "ways_of"]

RULES: dict[str, Rule] = {**products.RULES, **reductions.RULES, **shapes.RULES}


def ways_of(call: SplitCall) -> Ways:
    """The ways to cut an operator; none without a rule, or where a tensor has no dimension or no element."""
    tensors = [call.output] if call.node.op in FACTORIES else [call.shape(place) for place in call.tensors]
    if not has_rule(call.node.op) or not any(shape and prod(shape) for shape in tensors):
        return {}
    return RULES.get(call.node.op, elementwise)(call)


def has_rule(op: str) -> bool:
    return op in RULES or is_elementwise(op)
