"""Data parallelism of one batch, as splits: every operator that can be is cut along its samples.

    x ─► [a] ─► [b] ─► loss   becomes   x ─┬─► [a:0] ─► [b:0] ─┬─► sum ─► loss
                                           └─► [a:1] ─► [b:1] ─┘

Pieces are handed on from part to part, so that a run of operators that can all be cut becomes independent
copies of it on a part of the batch each, which read the same weights, or copies of these. What is no sample's
but has one row for each, as the zeros that a recurrence begins with, is made in parts for those that read it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from netsplit.errors import RewriteError
from netsplit.graph.ir import Graph, once_of
from netsplit.rewrite.copies import reads_weights
from netsplit.rewrite.draft import Draft, require_graph
from netsplit.rewrite.records import (
    CopyWeights,
    Rewrite,
    Split,
    checked_field,
    proportioned,
    proportions_of,
)
from netsplit.rewrite.samples.rows import (
    CutAlong,
    SampleRows,
    rows_given,
    rows_joined,
    rows_kept,
    rows_of,
    variable_at,
)
from netsplit.rewrite.split import chosen_way, split_in, split_sizes, ways_to_cut
from netsplit.rewrite.ways import Axis, Cat, SplitCall, Way

__all__ = ["along_samples", "copies_after", "replicate", "samples_axes"]


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
    return _replicate(graph, proportions_of(parts, graph.batch_size))


@once_of
def _replicate(graph: Graph, parts: tuple[float, ...]) -> tuple[Rewrite, ...]:
    splits = along_samples(graph, parts)
    return (*splits, *copies_after(graph, splits))


@once_of
def samples_axes(graph: Graph) -> dict[str, Axis]:
    """Of the nodes that can be cut along the samples, the axis that these are."""
    return {cut.call.node.name: cut.axis for cut in _cuts(graph, ())}


def copies_after(graph: Graph, splits: Sequence[Split]) -> tuple[CopyWeights, ...]:
    """For parts 1, 2, ... of all these operators copies of what they read of weights, by their numbers.

    Raises:
        RewriteError: it is no graph, or these are no splits; or one cannot be split so, or its sizes do not
            add up.
    """
    draft = Draft(graph)
    checked_field("splits", splits)
    made = [_split(draft, each) for each in splits]
    return tuple(
        CopyWeights(name, number)
        for names in made
        for number, name in enumerate(names)
        if number and reads_weights(draft, name)
    )


def _split(draft: Draft, split: Split) -> list[str]:
    """The names of its parts, whose sizes are checked."""
    call = SplitCall(draft.node(split.node), draft.layouts, draft.graph.initializers)
    axis, way = chosen_way(call, split.axis, draft.graph)
    sizes = split_sizes(call, axis, way.size, split.sizes, split.blocks)
    return split_in(draft, split.node, axis, sizes, split.blocks, way)


def _splits(graph: Graph, sizes: tuple[int, ...], whole: Collection[str]) -> tuple[tuple[Split, ...], str]:
    """Of all nodes but these; and the first that could not be cut after all, "" for none."""
    draft, splits = Draft(graph), []
    for cut in _cuts(graph, whole):
        own = Split(cut.call.node.name, cut.axis, tuple(cut.rows * size for size in sizes))
        splits.append(own)
        try:
            split_in(draft, own.node, own.axis, own.sizes, own.blocks)
        except RewriteError:
            return (), own.node
    return tuple(splits), ""


def _cuts(graph: Graph, whole: Collection[str]) -> Iterator[CutAlong]:
    """How nodes are cut along the samples, all but these: each after those whose parts it reads."""
    plain, lies = Draft(graph), rows_given(graph)
    made: set[str] = set()
    for node in graph:
        call = SplitCall(node, plain.layouts, graph.initializers)
        ways = {} if node.name in whole else ways_to_cut(call, graph)
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
