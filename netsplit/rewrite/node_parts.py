"""What rewrites made of the nodes of a graph: parts of operators, and what moves tensors for these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from netsplit.graph.ir import Graph, Node, NodeCut, once_of
from netsplit.rewrite.lowering import lowered_from
from netsplit.rewrite.samples import samples_axes
from netsplit.rewrite.tasks import axis_words

__all__ = ["NodePart", "NodeParts", "does", "node_parts", "parts_label"]

_DOES = {
    "alias": "hand weights on",
    "split_with_sizes": "take apart",
    "ne": "count targets",
    "sum": "count targets",
    "div": "divide by their count",
    "sub": "number a part's rows",
    "clamp": "number a part's rows",
    **dict.fromkeys(("lt", "ge", "logical_or", "unsqueeze", "masked_fill"), "leave out other parts' rows"),
}  # what else moves puts parts together


@dataclass(frozen=True)
class NodePart:
    """What a node has of an operator, and where its weights come from."""

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
    def name(self) -> str:
        """``linear_2 (fc1)``."""
        return f"{self.operator} ({self.module})" if self.module else self.operator

    @property
    def which(self) -> str:
        """``part 1/2 of dimension 0``; ``whole``."""
        along = [axis_words(cut.axis, cut.blocks, self.samples and not i) for i, cut in enumerate(self.cuts)]
        each = (f"{number} of {axis}" for number, axis in zip(self.numbers, along, strict=True))
        return f"part {', of which part '.join(each)}" if self.cuts else "whole"

    @property
    def description(self) -> str:
        """``linear_2 (fc1): part 1/2 of dimension 0 (50 %)``."""
        words = f"{self.which} ({_percent(self.fraction)})" if self.cuts else self.which
        copied = f", on copy {self.copy} of its weights" if self.copy is not None else ""
        return f"{self.name}: {words}{copied}{', its weights as variables' if self.variables else ''}"

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines as short as a box in a picture needs, one for each cut: ``1/2 of dim 0 · 50 %``,
        ``1/2 of input.1 · 50 %``, ``1/2 of samples · 50 %``."""
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
        """Nodes with the same one can be drawn as one box without anything being lost."""
        return ("moves",) if name in self.moving else self.of[name].lines if name in self.of else ()


@once_of
def node_parts(graph: Graph) -> NodeParts:
    """Parts by the graph's own rewrites. An axis is known to be the samples' where the graph was made of the
    captured one in this process."""
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


def does(node: Node) -> str:
    """What a node of `NodeParts.moving` does, in a few words: "take apart"."""
    return _DOES.get(node.kind, "put together")


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
