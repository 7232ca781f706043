"""Data parallelism of one batch, as splits: every operator that can be is cut along its samples.

    x ─► [a] ─► [b] ─► loss   becomes   x ─┬─► [a:0] ─► [b:0] ─┬─► sum ─► loss
                                           └─► [a:1] ─► [b:1] ─┘

Pieces are handed on from part to part, so a run of operators becomes independent copies on parts of the
batch, which read the same weights, or copies of these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from netsplit.errors import RewriteError
from netsplit.graph.arguments import gives_sparse_gradients
from netsplit.graph.ir import Graph, once_of
from netsplit.rewrite.emitter import MOVES, operator_named, require_graph, require_operators, weights_of
from netsplit.rewrite.following import AxisIn, FollowedCut, cut_fitting, ways_of_graph
from netsplit.rewrite.lowering import lowered, lowered_from
from netsplit.rewrite.records import CopyWeights, Rewrite, Split, proportioned, proportions_of
from netsplit.rewrite.tasks import OperatorTasks, TaskCut
from netsplit.rewrite.ways import Axis, SplitCall, Way

__all__ = ["along_samples", "copies_after", "reads_weights", "replicate", "samples_axes"]


def along_samples(graph: Graph, parts: int | Sequence[float]) -> tuple[Split, ...]:
    """Splits of all operators that can be cut along the samples.

    A BatchNorm, whose parts would have statistics of their own, and what draws random numbers stay whole.

    Args:
        graph: as it was captured; the samples are the first dimension of its inputs.
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
        splits = tuple(
            Split(cut.call.node.name, cut.axis, tuple(int(cut.scale) * size for size in sizes))
            for cut in _cuts(graph, whole)
        )
        try:
            lowered(graph, [OperatorTasks(each.node, (TaskCut(each.axis, each.sizes),)) for each in splits])
        except RewriteError as refusal:
            if refusal.operator in {each.node for each in splits}:
                whole.add(refusal.operator)
                continue
        return splits


def replicate(graph: Graph, parts: int | Sequence[float]) -> tuple[Rewrite, ...]:
    """`along_samples`, with copies of the weights for parts 1, 2, ...

    Each device then has all weights of its part of the batch, and gradients are summed once in a step.
    Weights with sparse gradients are read where they are. Arguments and errors as of `along_samples`.
    """
    splits = along_samples(graph, parts)
    return (*splits, *copies_after(graph, splits))


@once_of
def samples_axes(graph: Graph) -> dict[str, Axis]:
    """The axis of the samples in the nodes that can be cut along them."""
    return {cut.call.node.name: cut.axis for cut in _cuts(graph, ())}


def copies_after(graph: Graph, splits: Sequence[Split]) -> tuple[CopyWeights, ...]:
    """Copies of the weights that parts 1, 2, ... of all these operators read, by their numbers. Raises
    `RewriteError`: one is of no operator of the graph."""
    for each in splits:
        operator_named(graph, each.node)
    return tuple(
        CopyWeights(f"{each.node}:{number}", number)
        for each in splits
        if reads_weights(graph, each.node)
        for number in range(1, len(each.sizes))
    )


def reads_weights(graph: Graph, name: str) -> bool:
    """Whether an operator, or a part of one, reads weights that can be copied."""
    node, state = graph.nodes[name], lowered_from(graph)
    if node.part is not None and node.part.moves:
        return False
    if node.part is not None and state is not None:
        graph, node = state.captured, state.captured.nodes[node.part.operator]
    return node.op not in MOVES and not gives_sparse_gradients(node) and bool(weights_of(graph, node))


def _cuts(graph: Graph, whole: Collection[str]) -> Iterator[FollowedCut]:
    """How nodes, but for these, are cut along the samples: each after those whose parts it reads."""
    shapes = {k: graph.variables[k].shape for k in graph.input_variables}
    lies = {k: AxisIn(0) for k, shape in shapes.items() if shape and shape[0] == graph.batch_size}
    calls, ways = ways_of_graph(graph)
    yielded: set[str] = set()
    for name, call in calls.items():
        cut = None
        if name not in whole and not (call.node.part and call.node.part.moves):
            fitting = (_along(call, axis, way, lies, graph.batch_size) for axis, way in ways[name].items())
            cut = next(filter(None, fitting), None)
        if cut is None:
            lies |= _kept(graph, call, lies)
            continue
        for each in (*_producer_cuts(graph, cut, lies, whole), cut):
            if each.call.node.name not in yielded:  # else made in parts for others, along another axis
                yielded.add(each.call.node.name)
                yield each
                lies |= {k: own for k, own in each.makes().items() if own.blocks == 1}


def _along(
    call: SplitCall, axis: Axis, way: Way, lies: Mapping[str, AxisIn], samples: int
) -> FollowedCut | None:
    """The cut along the samples of all that has some. What is no sample's may be cut with them, but for
    weights."""
    cut = None if way.in_one else cut_fitting(call, axis, way, samples, lies, by_outputs=False)
    if cut is None or cut.blocks > 1 or cut.scale.denominator > 1 or cut.cuts_weights:
        return None
    return None if any(where.blocks > 1 for where in way.cut.values()) else cut


def _producer_cuts(
    graph: Graph, cut: FollowedCut, lies: Mapping[str, AxisIn], whole: Collection[str]
) -> list[FollowedCut]:
    """How what is no sample's is made in parts too, if an operator's parts read it: each after what it is
    made of. What cannot be made so stays whole, and is cut where it is."""
    cuts: dict[str, FollowedCut] = {}
    calls, ways = ways_of_graph(graph)
    for (tag, k), wanted in cut.reads():
        name = graph.variables[k].producer if tag == "var" else None
        if k in lies or name is None or name in whole or any(v in lies for v in graph.nodes[name].inputs):
            continue
        for axis, way in ways[name].items():
            own = cut_fitting(calls[name], axis, way, graph.batch_size, {k: wanted}, by_outputs=True)
            fits = own is not None and own.blocks == 1 and own.scale.denominator == 1
            if own is not None and fits and not way.in_one and not own.cuts_weights:
                before = _producer_cuts(graph, own, lies, whole)
                cuts |= {each.call.node.name: each for each in (*before, own)}
                break
    return list(cuts.values())


def _kept(graph: Graph, call: SplitCall, lies: Mapping[str, AxisIn]) -> dict[str, AxisIn]:
    """Where samples lie in what a whole operator makes: as in its inputs, where the size is the same."""
    axes: dict[str, AxisIn] = {}
    for k in filter(None, call.node.outputs):
        shape = graph.variables[k].shape
        for name in call.node.inputs:
            dim = lies[name].dim if name in lies else len(shape)
            if dim < len(shape) and shape[dim] == graph.variables[name].shape[dim]:
                axes.setdefault(k, lies[name])
    return axes
