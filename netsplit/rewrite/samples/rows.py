"""Where the samples of a batch lie in a graph's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from netsplit.graph.arguments import references
from netsplit.graph.ir import Graph
from netsplit.rewrite.ways import Axis, Cat, Place, SplitCall, Way

__all__ = ["CutAlong", "SampleRows", "rows_given", "rows_joined", "rows_kept", "rows_of", "variable_at"]


@dataclass(frozen=True)
class SampleRows:
    """Where the samples lie in a tensor: its dimension `dim` is [blocks, samples, rows], flattened."""

    dim: int
    rows: int
    blocks: int = 1


@dataclass(frozen=True)
class CutAlong:
    """An operator along one of its axes, which has so many rows for each sample."""

    call: SplitCall
    axis: Axis
    way: Way
    rows: int


def rows_given(graph: Graph) -> dict[str, SampleRows]:
    """Of the batch: the samples are the first dimension of what has as many there."""
    shapes = {k: graph.variables[k].shape for k in graph.input_variables}
    return {k: SampleRows(0, 1) for k, shape in shapes.items() if shape and shape[0] == graph.batch_size}


def rows_of(call: SplitCall, way: Way, lies: Mapping[str, SampleRows], samples: int) -> int:
    """Steps of the axis for a sample, where it is that of the samples in all that has some; else 0.

    A tensor that is no sample's may be cut with them.
    """
    rows, rest = divmod(way.size, samples)
    if rest or not rows or way.in_one:
        return 0
    seen = False
    for place in call.tensors:
        name = variable_at(call, place)
        own = lies.get(name)
        where = way.cut.get(place)
        if own is None and (where is None or (name and where.blocks == 1)):
            continue
        if own is None or where is None or (where.dim, where.blocks) != (own.dim, 1):
            return 0
        if where.times * rows != own.rows:
            return 0
        seen = True
    return rows if seen else 0


def rows_joined(cut: CutAlong) -> dict[str, SampleRows]:
    """Where the samples lie in what the parts make."""
    return {
        k: SampleRows(how.where.dim, how.where.times * cut.rows)
        for k, how in zip(cut.call.node.outputs, cut.way.joined, strict=True)
        if k and isinstance(how, Cat) and how.where.blocks == 1
    }


def rows_kept(graph: Graph, call: SplitCall, lies: Mapping[str, SampleRows]) -> dict[str, SampleRows]:
    """Of an operator that stays whole: where they lay before, in what has as much there."""
    made: dict[str, SampleRows] = {}
    for k in filter(None, call.node.outputs):
        shape = graph.variables[k].shape
        for name in call.node.inputs:
            own = lies.get(name)
            if own is None or own.dim >= len(shape):
                continue
            if shape[own.dim] == graph.variables[name].shape[own.dim]:
                made[k] = own
                break
    return made


def variable_at(call: SplitCall, place: Place) -> str:
    """The name of the variable there; "" of an initializer."""
    ((tag, name),) = references(call.template(place))
    return name if tag == "var" else ""
