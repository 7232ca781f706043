"""The rule of every operator that can be cut."""

from __future__ import annotations

from netsplit.rewrite.rules import (
    attention,
    convolutions,
    embedding,
    losses,
    normalisations,
    products,
    reductions,
    shapes,
)
from netsplit.rewrite.rules.elementwise import RULES as ALSO_ELEMENTWISE
from netsplit.rewrite.rules.elementwise import elementwise, is_elementwise
from netsplit.rewrite.rules.normalisations import WRITERS
from netsplit.rewrite.ways import Rule, SplitCall, Ways

__all__ = ["RULES", "WRITERS", "ways_of"]

RULES: dict[str, Rule] = {
    **products.RULES,
    **convolutions.RULES,
    **attention.RULES,
    **embedding.RULES,
    **normalisations.RULES,
    **reductions.RULES,
    **losses.RULES,
    **shapes.RULES,
    **ALSO_ELEMENTWISE,
}


def ways_of(call: SplitCall) -> Ways:
    """Of an operator without a rule, none."""
    rule = RULES.get(call.node.op)
    if rule is None:
        rule = elementwise if is_elementwise(call.node.op) else _no_way
    return rule(call)


def _no_way(_: SplitCall) -> Ways:
    return {}
