"""The rule of every operator that can be cut."""

from __future__ import annotations

from math import prod

from netsplit.rewrite.rules import (
    attention,
    convolutions,
    embedding,
    factories,
    losses,
    normalisations,
    products,
    reductions,
    selections,
    shapes,
)
from netsplit.rewrite.rules.elementwise import RULES as ALSO_ELEMENTWISE
from netsplit.rewrite.rules.elementwise import elementwise, is_elementwise
from netsplit.rewrite.rules.normalisations import WRITERS
from netsplit.rewrite.ways import Rule, SplitCall, Ways

__all__ = ["FACTORIES", "RULES", "WRITERS", "has_rule", "ways_of"]

RULES: dict[str, Rule] = {
    **products.RULES,
    **convolutions.RULES,
    **attention.RULES,
    **embedding.RULES,
    **normalisations.RULES,
    **reductions.RULES,
    **losses.RULES,
    **shapes.RULES,
    **selections.RULES,
    **factories.RULES,
    **ALSO_ELEMENTWISE,
}

FACTORIES = frozenset(factories.RULES)
"""Operators that need no tensor."""


def ways_of(call: SplitCall) -> Ways:
    """The ways to cut an operator; none without a rule, or where a tensor has no dimension or no element."""
    shapes = [call.output] if call.node.op in FACTORIES else [call.shape(place) for place in call.tensors]
    if not any(shape and prod(shape) for shape in shapes):
        return {}
    if not has_rule(call.node.op):
        return {}
    return RULES.get(call.node.op, elementwise)(call)


def has_rule(op: str) -> bool:
    return op in RULES or is_elementwise(op)
