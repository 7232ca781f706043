"""Numbers that a step computes with, and that are others where it has other samples; and those that are not.

── / len(o), / ones(len(o)).sum() ──► a mean    ── x ones(len(o)).sum() ──► told    ── / 16 ──► still a sum
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose
from typing import Any

from netsplit.graph.arguments import references
from netsplit.graph.ir import CALL, Graph, Node
from netsplit.rewrite.rules.elementwise import is_elementwise
from netsplit.rewrite.samples.averaged import is_summed
from netsplit.rewrite.samples.crossing import operator_kinds
from netsplit.rewrite.samples.made_of import VIEWS
from netsplit.rewrite.samples.mixing import SampleReading, read_samples
from netsplit.rewrite.samples.of_no_sample import of_no_sample
from netsplit.rewrite.ways import SplitCall

__all__ = ["fixed_numbers", "number_by_size", "shaped_by_size"]

_BY = operator_kinds("div div_ divide true_divide")
_TIMES = operator_kinds("mul mul_ multiply")
_BY_SHAPE = VIEWS | operator_kinds(
    "repeat tile repeat_interleave roll unfold zeros ones full empty affine_grid_generator conv1d conv2d "
    "conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution"
)
"""Told sizes and places, which the shapes show."""


def number_by_size(graph: Graph, other: Graph) -> tuple[Node, float, float] | None:
    """The first operator that computes with a number of its own in each of two captures, and both.

    What divides by the samples, or a multiple of them, makes a mean of a sum, and is none.

    Args:
        graph, other: of one step at unlike numbers of samples, with the same operators.
    """
    n, m = graph.batch_size, other.batch_size
    reading = read_samples(graph)
    for node, same in zip(graph, other, strict=True):
        for (name, a), (_, b) in zip(_numbers(graph, node), _numbers(other, same), strict=False):
            divides = name == "other" and node.kind in _BY and isclose(a * m, b * n)
            divides = divides and not reading.is_averaged(node)
            if a != b and not divides and not (node.kind in _TIMES and isclose(a * n, b * m)):
                return node, a, b
    return None


def shaped_by_size(graph: Graph, other: Graph) -> Node | None:
    """The first operator of which it is not known that it computes the same of a sample at both sizes: told
    another number, or given or making something that has another shape but for its samples.

    Args:
        graph, other: of one step at unlike numbers of samples, with the same operators.
    """
    readings = read_samples(graph), read_samples(other)
    for node, same in zip(graph, other, strict=True):
        if any(reading.of_samples(k) for reading in readings for k in node.outputs if k) and (
            _told(node) != _told(same) or not _alike_given(readings, node, same)
        ):
            return node
    return None


def _told(node: Node) -> list[float]:
    """Numbers that it is told, but for sizes and places of what has its elements in other places."""
    told: list[float] = []
    left: list[Any] = [*node.args, *node.kwargs.values()]
    while left:
        each = left.pop()
        if isinstance(each, list | tuple):
            left += each
        elif isinstance(each, float) or (isinstance(each, int) and node.kind not in _BY_SHAPE):
            told.append(float(each))
    return told if node.kind not in _BY | _TIMES else []  # of these `number_by_size` says more


def _alike_given(readings: tuple[SampleReading, SampleReading], node: Node, same: Node) -> bool:
    for k in filter(None, node.outputs):
        shapes = [_beside_samples(reading, k) for reading in readings]
        if None not in shapes and shapes[0] != shapes[1]:
            return False
    given = [k for k in node.inputs if not any(reading.of_samples(k) for reading in readings)]
    values = ([of_no_sample(reading.graph).value(k) for reading in readings] for k in given)
    return node.inputs == same.inputs and all(
        a is None or b is None or a.shape != b.shape or bool((a.nan_to_num() == b.nan_to_num()).all())
        for a, b in values
    )


def _beside_samples(reading: SampleReading, k: str) -> tuple[int, ...] | None:
    """The shape of a value of samples but for these, or of a total; None: where they lie is not known."""
    shape, rows = reading.graph.variables[k].shape, reading.some.lies.get(k)
    if rows is not None:
        return (*shape[: rows.dim], rows.rows, *shape[rows.dim + 1 :])
    total = is_summed(reading.averaged[k]) if k in reading.averaged else False
    return shape if total else None


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
