"""Rewrites: algebra first, then the others as tasks, and the graph lowered from these.

    graph ── with_algebra ──► a graph ── folded, lowered ──► the graph; `Graph.rewrites` says what was given

Sizes along the samples follow the batch size of the graph. `node_parts` says what a graph's nodes have
become.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

from netsplit.errors import RewriteError
from netsplit.graph.arguments import gives_sparse_gradients
from netsplit.graph.ir import CALL, Graph, Initializer, Node, NodeCut, once_of
from netsplit.rewrite.algebra.applying import with_algebra
from netsplit.rewrite.algebra.rule import Algebra
from netsplit.rewrite.emitter import operator_named, require_graph, require_operators, weights_of
from netsplit.rewrite.in_place import out_of_place
from netsplit.rewrite.layouts import layouts_of
from netsplit.rewrite.leaves import ways_to_cut
from netsplit.rewrite.lowering import Lowered, lowered, lowered_from
from netsplit.rewrite.records import CopyWeights, ReadWeights, Rewrite, Split, algebra_of, folded
from netsplit.rewrite.samples import samples_axes
from netsplit.rewrite.tasks import OperatorTasks
from netsplit.rewrite.ways import Axis, SplitCall

__all__ = [
    "NodePart", "NodeParts", "also", "applied", "node_parts", "parts_label", "split_axes",
]  # fmt: skip


def applied(
    graph: Graph,
    rewrites: Sequence[Rewrite],
    like: Graph | None = None,
    *,
    scaled: bool | Literal["samples"] = False,
    parts: Sequence[Initializer] = (),
) -> Graph:
    """The graph after these rewrites, of which it may have had the first ones; the same call gives the same
    object.

    Args:
        like: the same step at another size after the same rewrites: the graph gets the same nodes.
        scaled: the rewrites may be of a graph of other sizes, and parts' sizes follow the graph's; "samples":
            of another number of samples alone. Else sizes add up.
        parts: in which parameters are held: who would read others has them put together.

    Raises:
        RewriteError: one cannot be done, the graph has had others, or it cannot get the same nodes.
    """
    if not rewrites and not parts:
        return graph
    require_graph(graph)
    done = graph.rewrites
    if tuple(rewrites[: len(done)]) != done:
        raise RewriteError(
            f"the graph has already been rewritten by {len(done)} other steps: give the captured graph."
        )
    if len(rewrites) == len(done) and not parts:
        return graph
    if like is not None:
        require_graph(like, "like")
        like = like if like.rewrites == tuple(rewrites) else None
    then = None if like is None else lowered_from(like)
    rewritten = _applied(graph, tuple(rewrites), then, tuple(parts))
    if scaled is not True and like is None:
        _require_sizes_of_its_own(graph, rewritten, but_samples=scaled == "samples")
    return rewritten


def also(graph: Graph, *rewrites: Rewrite) -> Graph:
    """The graph after some more rewrites, for those who try many: it is not kept. Raises as `applied`."""
    require_graph(graph)
    rewritten = _lowered(graph, (*graph.rewrites, *rewrites), None, ())
    _require_sizes_of_its_own(graph, rewritten)
    return rewritten


def _lowered(
    graph: Graph, rewrites: tuple[Rewrite, ...], like: Lowered | None, parts: tuple[Initializer, ...]
) -> Graph:
    require_operators(graph)
    if len(algebra_of(graph.rewrites)) == len(graph.rewrites):
        graph = _with_algebra(graph, algebra_of(rewrites))
    state, more = _state(graph), rewrites[len(graph.rewrites) :]
    if not (more or parts or state.tasks):
        return graph
    for each in more:
        _require_operator(graph, each)
    tasks = _tasks(state.captured, state.tasks, more)
    return lowered(
        state.captured, [*tasks.values()], like or state.like, parts or state.parts, rewrites, scaled=True
    )


_applied = once_of(_lowered)


@once_of
def _with_algebra(graph: Graph, algebra: tuple[Algebra, ...]) -> Graph:
    return with_algebra(graph, algebra[len(graph.rewrites) :])


def _state(graph: Graph) -> Lowered:
    state = lowered_from(graph)
    if state is not None:
        return state
    if len(graph.rewrites) > len(algebra_of(graph.rewrites)):
        raise RewriteError("the graph was made from an unknown one: give the captured graph.")
    return Lowered(graph, {}, (), None, {}, ())


def _require_operator(graph: Graph, rewrite: Rewrite) -> None:
    """Raises `RewriteError`: its node moves tensors for others, or it is algebra that comes late."""
    if isinstance(rewrite, Algebra):
        raise RewriteError(
            f"'{rewrite.rule.name}' comes after rewrites that cut operators: give algebra first."
        )
    node = graph.nodes.get(rewrite.node)
    if node is None or node.part is None or not node.part.moves:
        return
    raise RewriteError(
        f"'{node.name}' moves tensors for parts: give a part, such as '{node.part.operator}:0', or its "
        "reader."
    )


def _require_sizes_of_its_own(graph: Graph, rewritten: Graph, but_samples: bool = False) -> None:
    """Raises `RewriteError`: new parts have other sizes than given, unless along the samples with
    `but_samples`."""
    state, known = _state(rewritten), {each[:2] for each in _state(graph).scaled}
    for name, cut, reason in state.scaled:
        if (name, cut) not in known and not but_samples:
            raise RewriteError(reason)
        if (name, cut) in known:
            continue
        if cut.blocks > 1 or samples_axes(state.captured).get(name) != cut.axis:
            others = "another batch may change sizes only along the samples"
            raise RewriteError(f"{reason.removesuffix('.')} ({others}).")


def _tasks(
    graph: Graph, before: Mapping[str, OperatorTasks], rewrites: Sequence[Rewrite]
) -> dict[str, OperatorTasks]:
    tasks = folded(rewrites, before)
    for name in tasks:
        operator_named(graph, name)
    node_of = {
        own.named(path[:depth]): graph.nodes[name]
        for name, own in tasks.items()
        for path in own.paths
        for depth in range(len(path) + 1)
    }
    for each in rewrites:
        if isinstance(each, CopyWeights | ReadWeights):
            _require_weights(graph, node_of[each.node], each)
    return tasks


def _require_weights(graph: Graph, node: Node, rewrite: CopyWeights | ReadWeights) -> None:
    """Raises `RewriteError`: the operator has no weights that could be copied, or read elsewhere."""
    who, reason = f"'{rewrite.node}' ({node.kind})", ""
    python = node.op.startswith(CALL) or bool(node.checkpoint)
    if isinstance(rewrite, ReadWeights):
        if not (node.initializers or weights_of(graph, node)):
            raise RewriteError(f"{who} has no parameters to read elsewhere.")
        if python or node.autocast or graph.autocast:
            raise RewriteError(
                f"{who} cannot read its parameters elsewhere: it is a piece of Python, or runs under "
                "autocast or within an activation checkpoint, which treat parameters differently from "
                "other tensors."
            )
        return
    if python:
        reason = (
            "it is a piece of Python, or runs within an activation checkpoint, which finds parameters by "
            "itself"
        )
    elif gives_sparse_gradients(node):
        reason = "their gradient is sparse, and copies sum only dense gradients"
    if reason:
        raise RewriteError(f"{who} cannot read copies of its parameters: {reason}.")
    if not weights_of(graph, node):
        raise RewriteError(f"{who} has no parameters to copy.")


def split_axes(graph: Graph, node: str) -> dict[Axis, int]:
    """The axes along which a node can be cut, and their sizes; none where it cannot be cut at all.

    Raises:
        RewriteError: there is no such node.
    """
    require_graph(graph)
    own = graph.nodes.get(node)
    if own is not None and own.part is not None and own.part.moves:
        return {}
    return {axis: way.size for axis, way in ways_to_cut(*_call(graph, node)).items()}


def _call(graph: Graph, node: str) -> tuple[SplitCall, Graph]:
    """An operator, or a part of one, as a call that could be cut, and the graph of whole operators."""
    require_graph(graph)
    require_operators(graph)
    captured = out_of_place(_state(graph).captured)
    own = operator_named(graph, node)
    _require_operator(graph, Split(node, 0, ()))
    if own.part is None or not own.part.cuts:
        return SplitCall(captured.nodes[node], layouts_of(captured), captured.initializers), captured
    return SplitCall(own, layouts_of(graph), graph.initializers), captured


@dataclass(frozen=True)
class NodePart:
    """The part of an operator that a node computes, and where its weights come from."""

    operator: str  # as it was captured
    module: str
    cuts: tuple[NodeCut, ...]  # the first first; several where a part was cut again; none: it is whole
    samples: bool  # the first is along the samples, as far as is known
    copy: int | None  # that it reads of its weights; None: it reads no copies
    variables: bool  # its weights are such, for which it may be on another device than they

    @property
    def fraction(self) -> float:
        """The fraction of the operator that it computes."""
        return prod(cut.fraction for cut in self.cuts)

    @property
    def numbers(self) -> tuple[str, ...]:
        """``1/2`` for each cut."""
        return tuple(f"{cut.index + 1}/{cut.count}" for cut in self.cuts)

    @property
    def description(self) -> str:
        """``linear_2 (fc1): 1/2 of dim 1 · 50 %``."""
        name = f"{self.operator} ({self.module})" if self.module else self.operator
        copied = f", copy {self.copy} of weights" if self.cuts and self.copy is not None else ""
        return f"{name}: {', '.join(self.lines)}{copied}"

    @property
    def lines(self) -> tuple[str, ...]:
        """Short lines for a box in a picture, one for each cut: ``1/2 of dim 0 · 50 %``, ``1/2 of samples ·
        50 %``."""
        if not self.cuts and self.variables:
            return ("weights as variables",)
        if not self.cuts:
            return ("once more",) if self.copy is None else (f"copy {self.copy} of weights",)
        axes = [f"dim {cut.axis}" if isinstance(cut.axis, int) else cut.axis for cut in self.cuts]
        axes[0] = "samples" if self.samples else axes[0]
        each = zip(self.numbers, axes, self.cuts, strict=True)
        return tuple(f"{number} of {axis} · {_percent(cut.fraction)}" for number, axis, cut in each)


@dataclass(frozen=True)
class NodeParts:
    """The parts in a graph; empty where nothing was rewritten."""

    of: Mapping[str, NodePart]  # by node; whole ones that read copies of weights, or variables, too
    moving: frozenset[str]  # nodes that take tensors apart, put them together or hand weights on

    @cached_property
    def cut(self) -> Mapping[str, NodePart]:
        """Nodes that are no whole operator."""
        return {name: part for name, part in self.of.items() if part.cuts}

    @cached_property
    def sampled(self) -> frozenset[str]:
        """The captured operators that are cut along the samples first."""
        return frozenset(part.operator for part in self.cut.values() if part.samples)

    def look(self, name: str) -> tuple[str, ...]:
        """Nodes that look alike can be drawn as one box."""
        return ("moves",) if name in self.moving else self.of[name].lines if name in self.of else ()


@once_of
def node_parts(graph: Graph) -> NodeParts:
    """Parts by the graph's own rewrites. The samples' axis is known where the graph was rewritten in this
    process."""
    state = lowered_from(graph) if graph.rewrites else None
    tasks = () if state is None else state.tasks.values()
    weights = {own.named(path, n): read for own in tasks for path, _, n, read in own.tasks()}
    cut = any(node.part is not None and node.part.cuts for node in graph)
    samples = samples_axes(state.captured) if cut and state is not None else {}
    parts, moving = {}, set()
    for node in graph:
        if node.part is None:
            continue
        if node.part.moves:
            moving.add(node.name)
            continue
        read = weights.get(node.name, 0)
        copy = None if read in (0, "home") else int(read)
        operator, cuts = node.part.operator, node.part.cuts
        sampled = bool(cuts) and cuts[0].blocks == 1 and samples.get(operator) == cuts[0].axis
        parts[node.name] = NodePart(operator, node.module, cuts, sampled, copy, read == "home")
    return NodeParts(parts, frozenset(moving))


def parts_label(parts: Sequence[NodePart]) -> str:
    """Names what runs together: ``part 1/2 of linear_2``, ``part 1/2 of 3 operators``, ``4 parts``; or ""."""
    if not parts:
        return ""
    if len({part.numbers for part in parts}) > 1:
        return f"{len(parts)} parts"
    number = " of ".join(reversed(parts[0].numbers))
    return f"part {number} of {parts[0].operator if len(parts) == 1 else f'{len(parts)} operators'}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if fraction >= 0.01 else f"{100 * fraction:.1g} %"
