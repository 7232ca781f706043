"""Rewrites done to a graph: to the captured one, and again to the same step at another number of samples.

    graph ── applied(graph, rewrites) ──► the graph rewritten; `Graph.rewrites` says how

Sizes along the samples grow and shrink with those of the graph, where it is not the one that they are of.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from netsplit.errors import RewriteError
from netsplit.graph.ir import Graph, once_of
from netsplit.rewrite.copies import copied_in
from netsplit.rewrite.decisions import Decisions
from netsplit.rewrite.draft import Draft, require_graph
from netsplit.rewrite.parts import parameters_in_parts
from netsplit.rewrite.read import read_in
from netsplit.rewrite.records import CopyWeights, ReadWeights, Rewrite, Split, checked_field
from netsplit.rewrite.samples.data_parallel import samples_axes
from netsplit.rewrite.split import (
    block_size,
    chosen_way,
    fewer_than_parts,
    sizes_do_not_add_up,
    split_in,
    split_sizes,
)
from netsplit.rewrite.ways import SplitCall

__all__ = ["CAPTURED", "also", "applied"]

CAPTURED = "rewrite.captured"
"""Under this a rewritten graph has, derived, the one that it was first made of."""
_DECISIONS = "rewrite.decisions"
"""Under this a graph has, derived, its rewrites, one lot done after another, each with what was decided."""

_SCALED = "rewrite.scaled"
"""Under this a graph has, derived, the splits of the last lot whose sizes are not its own, and why not."""

_PART = re.compile(r"(.+):\d+")

_Lots: TypeAlias = tuple[tuple[tuple[Rewrite, ...], Decisions], ...]


def applied(
    graph: Graph,
    rewrites: Sequence[Rewrite],
    like: Graph | None = None,
    *,
    scaled: bool | Literal["samples"] = False,
) -> Graph:
    """The graph after these rewrites, of which it may have had the first ones, or all; without any, as it is.

    The same call gives the same object.

    Args:
        like: the same step at another size after the same rewrites: the graph gets the same nodes.
        scaled: the rewrites may be of a graph of other sizes, as sizes are in any case with `like`: those of
            parts grow and shrink with the graph's. "samples": of another number of samples alone. Else they
            add up.

    Raises:
        RewriteError: one cannot be done, or the graph has had others; or it cannot get the same nodes.
    """
    require_graph(graph)
    if like is not None:
        require_graph(like, "like")
    checked_field("rewrites", rewrites)
    checked_field("scaled", scaled)
    if not rewrites:
        return graph
    done = graph.rewrites
    if tuple(rewrites[: len(done)]) != done:
        raise RewriteError(
            f"the graph has been rewritten by {len(done)} other steps already: give it as it was captured."
        )
    left = tuple(rewrites[len(done) :])
    if like is not None and not done and like.rewrites == left:
        lots: _Lots = like.derived.get(_DECISIONS, ())
        for own, follow in lots:
            graph = _applied(graph, own, follow)
        left = left[len(graph.rewrites) :]
    if not left:
        return graph
    made = _applied(graph, left, None)
    if scaled is not True and like is None:
        _require_sizes_of_its_own(made, but_samples=scaled == "samples")
    return made


def _require_sizes_of_its_own(made: Graph, but_samples: bool = False) -> None:
    """Raises `RewriteError`: some parts that were just made are of other sizes than was said.

    Args:
        but_samples: they may be so along the samples.
    """
    for split, reason in made.derived.get(_SCALED, ()):
        if not but_samples:
            raise RewriteError(reason)
        if not _is_along_samples(split, made.derived.get(CAPTURED)):
            others = "sizes of another batch are taken along the samples alone"
            raise RewriteError(f"{reason.removesuffix('.')} ({others}).")


def _is_along_samples(split: Split, captured: Graph | None) -> bool:
    """As far as is known; of a part, as of its operator."""
    axes, name = {} if captured is None else samples_axes(captured), split.node
    while name not in axes and (part := _PART.fullmatch(name)):
        name = part[1]
    return split.blocks == 1 and axes.get(name) == split.axis


def _done(graph: Graph, rewrites: tuple[Rewrite, ...], follow: Decisions | None) -> Graph:
    draft = Draft(graph, follow)
    for each in rewrites:
        _do(draft, each)
    made = parameters_in_parts(draft.finish((*graph.rewrites, *rewrites)))
    if draft.decisions.scaled:
        made.derived[_SCALED] = tuple(draft.decisions.scaled)
    if not graph.rewrites or _DECISIONS in graph.derived:
        made.derived[CAPTURED] = graph.derived.get(CAPTURED, graph)
        made.derived[_DECISIONS] = (*graph.derived.get(_DECISIONS, ()), (rewrites, draft.decisions))
    return made


_applied = once_of(_done)


def also(graph: Graph, *rewrites: Rewrite) -> Graph:
    """The graph after some rewrites more, for those who try many: it is not kept. Raises as `applied`."""
    checked_field("rewrites", rewrites)
    made = _done(graph, rewrites, None)
    _require_sizes_of_its_own(made)
    return made


def _do(draft: Draft, rewrite: Rewrite) -> None:
    if isinstance(rewrite, ReadWeights):
        read_in(draft, rewrite.node)
    elif isinstance(rewrite, CopyWeights):
        copied_in(draft, rewrite.node, rewrite.copy)
    else:
        _split(draft, rewrite)


def _split(draft: Draft, split: Split) -> None:
    graph = draft.graph
    call = SplitCall(draft.node(split.node), draft.layouts, graph.initializers)
    before = draft.decisions.way_before
    if before is not None:
        size = before.size_in(call)
        if size is not None and (size != before.size or call.is_empty):
            sizes = split.sizes_of(block_size(call, split.axis, size, split.blocks), graph.batch_size)
            split_in(draft, split.node, split.axis, sizes, split.blocks, before)
            return
    axis, way = chosen_way(call, split.axis, graph)
    if axis != split.axis:  # one cut has one name: records are compared, and told
        raise call.error(split.axis, f"a Split numbers dimensions from 0: give {axis}")
    block = block_size(call, axis, way.size, split.blocks)
    sizes = split.sizes_of(block, graph.batch_size)
    if sizes != split.sizes:
        reason = sizes_do_not_add_up(call, axis, split.sizes, block)
        draft.decisions.scaled.append((split, str(reason)))
    if 0 in sizes:
        raise fewer_than_parts(call, axis, len(sizes), graph.batch_size)
    sizes = split_sizes(call, axis, way.size, sizes, split.blocks)
    split_in(draft, split.node, axis, sizes, split.blocks)
