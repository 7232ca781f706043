"""Numbers that a step computes with, and that are others where it has other samples; and those that are not.

── / len(o), / ones(len(o)).sum() ──► a mean    ── x ones(len(o)).sum() ──► told    ── / 16 ──► still a sum
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose

from netsplit.graph.arguments import references
from netsplit.graph.ir import CALL, Graph, Node
from netsplit.rewrite.rules.elementwise import is_elementwise
from netsplit.rewrite.samples.crossing import operator_kinds
from netsplit.rewrite.samples.mixing import read_samples
from netsplit.rewrite.samples.of_no_sample import of_no_sample
from netsplit.rewrite.ways import SplitCall

__all__ = ["fixed_numbers", "number_by_size"]

_BY = operator_kinds("div div_ divide true_divide")
_TIMES = operator_kinds("mul mul_ multiply")


def number_by_size(graph: Graph, other: Graph) -> tuple[Node, float, float] | None:
    """The first operator that computes with a number of its own in each of two captures, and both.

    What divides a sum by the samples, or a multiple of them, once, makes a mean of it, and is none.

    Args:
        graph, other: of one step at unlike numbers of samples, with the same operators.
    """
    n, m = graph.batch_size, other.batch_size
    reading, divided = read_samples(graph), set[str]()
    for node, same in zip(graph, other, strict=True):
        once = divided.isdisjoint(node.inputs)
        if not once:
            divided.update(node.outputs)
        for (name, a), (_, b) in zip(_numbers(graph, node), _numbers(other, same), strict=False):
            over = name == "other" and node.kind in _BY and isclose(a * m, b * n)
            if a != b and (over or (node.kind in _TIMES and isclose(a * n, b * m))):
                if not once or not reading.is_to_average(node):
                    return node, a, b
                divided.update(node.outputs)
            elif a != b:
                return node, a, b
    return None


def fixed_numbers(graph: Graph, other: Graph) -> frozenset[str]:
    """Operators that scale or divide by numbers which are the same in both: these make no mean of a sum.

    Of what is times 0 nothing is left.

    Args:
        graph, other: of one step at unlike numbers of samples, with the same operators.
    """
    fixed = set()
    for node, same in zip(graph, other, strict=True):
        numbers = list(_numbers(graph, node)) if node.kind in _BY | _TIMES else []
        if numbers and all(a for _, a in numbers) and numbers == list(_numbers(other, same)):
            fixed.add(node.name)
    return frozenset(fixed)


def _numbers(graph: Graph, node: Node) -> Iterator[tuple[str, float]]:
    """Of an operator that makes each element of those in its place, by the names of its arguments."""
    if node.op.startswith(CALL) or not is_elementwise(node.op):
        return
    values = of_no_sample(graph)
    of_samples = all(values.value(k) is None for k in node.outputs if k)
    for name, template in SplitCall(node, {}, {}).arguments.items():
        if isinstance(template, int | float) and not isinstance(template, bool):
            yield name, float(template)
        for tag, k in references(template):
            value = graph.constants.get(k) if tag == "init" else values.value(k) if of_samples else None
            if value is not None and value.numel() == 1 and not (value.is_meta or value.is_complex()):
                yield name, float(value)
