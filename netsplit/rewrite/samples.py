"""Data parallelism of one batch, as splits: every operator that can be is cut along its samples.

    x ─► [a] ─► [b] ─► loss   becomes   x ─┬─► [a:0] ─► [b:0] ─┬─► sum ─► loss
                                           └─► [a:1] ─► [b:1] ─┘

Pieces are handed on from part to part, so that a run of operators that can all be cut becomes independent
copies of it on a part of the batch each, which read the same weights, or copies of these. What is no sample's
but has one row for each, as the zeros that a recurrence begins with, is made in parts for those that read it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from netsplit.errors import RewriteError
from netsplit.graph.arguments import references
from netsplit.graph.ir import Graph, Node, once_of
from netsplit.graph.storage import gives_sparse_gradients
from netsplit.rewrite.emitter import require_graph, require_operators
from netsplit.rewrite.layouts import layouts_of
from netsplit.rewrite.leaves import ways_to_cut
from netsplit.rewrite.lowering import lowered
from netsplit.rewrite.records import CopyWeights, Rewrite, Split, proportioned, proportions_of
from netsplit.rewrite.tasks import OperatorTasks, TaskCut
from netsplit.rewrite.ways import Axis, Cat, Place, SplitCall, Way

__all__ = ["along_samples", "copies_of_parts", "replicate", "samples_axes"]


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


def along_samples(graph: Graph, parts: int | Sequence[float]) -> tuple[Split, ...]:
    """Splits of all operators that can be cut along the samples.

    What cannot be cut so stays whole: a BatchNorm, whose parts would have statistics of their own, and what
    draws random numbers.

    Args:
        graph: as it was captured; the samples are the first dimension of what it is given.
        parts: two or more, that differ by a sample at most; or their proportions.

    Raises:
        RewriteError: it is no graph, or `parts` are none, or more than there are samples.
    """
    require_graph(graph)
    require_operators(graph)
    return _along_samples(graph, proportions_of(parts, graph.batch_size))


@once_of
def _along_samples(graph: Graph, parts: tuple[float, ...]) -> tuple[Split, ...]:
    sizes = proportioned(graph.batch_size, parts)
    whole: set[str] = set()  # nodes whose parts do not run on what the others make
    while True:
        splits, refused = _splits(graph, sizes, whole)
        if not refused:
            return splits
        whole.add(refused)


def replicate(graph: Graph, parts: int | Sequence[float]) -> tuple[Rewrite, ...]:
    """`along_samples`, and that the parts of number 1, 2, ... read copies of the weights of their own.

    Each device then has all weights of its part of the batch, and gradients are summed once in a step,
    instead of weights sent and gradients sent back for every micro-batch. Weights of which there can be no
    copies (of which the gradient is sparse) are read where they are.

    Args:
        graph: as it was captured.
        parts: as `along_samples` has them.

    Raises:
        RewriteError: as `along_samples`.
    """
    require_graph(graph)
    require_operators(graph)
    return _replicate(graph, proportions_of(parts, graph.batch_size))


@once_of
def _replicate(graph: Graph, parts: tuple[float, ...]) -> tuple[Rewrite, ...]:
    splits = along_samples(graph, parts)
    return (*splits, *copies_of_parts(graph, splits))


@once_of
def samples_axes(graph: Graph) -> dict[str, Axis]:
    """Of the nodes that can be cut along the samples, the axis that these are."""
    return {cut.call.node.name: cut.axis for cut in _cuts(graph, ())}


def copies_of_parts(graph: Graph, splits: Sequence[Split]) -> tuple[CopyWeights, ...]:
    """For parts 1, 2, ... of operators of a captured graph copies of what they read of weights."""
    reading = {
        node.name
        for node in graph
        if not gives_sparse_gradients(node) and any(k not in graph.constants for k in node.initializers)
    }
    return tuple(
        CopyWeights(f"{each.node}:{number}", number)
        for each in splits
        if each.node in reading
        for number in range(1, len(each.sizes))
    )


def _splits(graph: Graph, sizes: tuple[int, ...], whole: Collection[str]) -> tuple[tuple[Split, ...], str]:
    """Of all nodes but these; and the first that could not be cut after all, "" for none."""
    splits = tuple(
        Split(cut.call.node.name, cut.axis, tuple(cut.rows * size for size in sizes))
        for cut in _cuts(graph, whole)
    )
    try:
        lowered(graph, [OperatorTasks(each.node, (TaskCut(each.axis, each.sizes),)) for each in splits])
    except RewriteError as refusal:
        if refusal.operator in {each.node for each in splits}:
            return (), refusal.operator
    return splits, ""


def _cuts(graph: Graph, whole: Collection[str]) -> Iterator[CutAlong]:
    """How nodes are cut along the samples, all but these: each after those whose parts it reads."""
    layouts, lies = layouts_of(graph), rows_given(graph)
    made: set[str] = set()
    for node in graph:
        call = SplitCall(node, layouts, graph.initializers)
        ways = {} if node.name in whole or _moves(node) else ways_to_cut(call, graph)
        fitting = ((axis, rows_of(call, way, lies, graph.batch_size)) for axis, way in ways.items())
        axis, rows = next(((axis, rows) for axis, rows in fitting if rows), (0, 0))
        if not rows:
            lies |= rows_kept(graph, call, lies)
            continue
        cut = CutAlong(call, axis, ways[axis], rows)
        for each in (*_made_for(graph, cut, lies, whole), cut):
            name = each.call.node.name
            if name not in made:  # else made in parts for others, along another axis
                made.add(name)
                yield each
                lies |= rows_joined(each)


def _made_for(
    graph: Graph, cut: CutAlong, lies: Mapping[str, SampleRows], whole: Collection[str]
) -> list[CutAlong]:
    """How what is no sample's is made in parts too, of what an operator's parts read: each after what it is
    made of. What nobody can make so stays whole, and is cut where it is."""
    made: dict[str, CutAlong] = {}
    for k, rows in _read(cut):
        name = graph.variables[k].producer
        if k in lies or name is None or name in whole:
            continue
        call = SplitCall(graph.nodes[name], cut.call.layouts, graph.initializers)
        if any(variable_at(call, place) in lies for place in call.tensors):
            continue
        ways = ways_to_cut(call, graph).items()
        fitting = (
            CutAlong(call, axis, way, _rows_made(call, way, k, rows, graph.batch_size)) for axis, way in ways
        )
        own = next((each for each in fitting if each.rows), None)
        if own is not None:
            before = _made_for(graph, own, lies, whole)
            made |= {each.call.node.name: each for each in (*before, own)}
    return list(made.values())


def _read(cut: CutAlong) -> Iterator[tuple[str, SampleRows]]:
    """The variables that an operator's parts read pieces of, and where the samples lie in them."""
    for place, where in cut.way.cut.items():
        if k := variable_at(cut.call, place):
            yield k, SampleRows(where.dim, where.times * cut.rows)


def _rows_made(call: SplitCall, way: Way, k: str, wanted: SampleRows, samples: int) -> int:
    """Steps of the axis for a sample, where its parts make pieces of k for samples that lie so; else 0."""
    how = way.joined[call.node.outputs.index(k)]
    if not isinstance(how, Cat) or (how.where.dim, how.where.blocks) != (wanted.dim, 1) or way.in_one:
        return 0
    rows, rest = divmod(wanted.rows, how.where.times)
    weights = any(not variable_at(call, place) for place in way.cut)
    return 0 if rest or weights or way.size != rows * samples else rows


def _moves(node: Node) -> bool:
    return node.part is not None and node.part.moves
