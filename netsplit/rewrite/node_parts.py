"""What rewrites made of the nodes of a graph: parts of operators, and what moves tensors for these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from netsplit.graph.ir import Graph, Node, NodeRole, once_of
from netsplit.rewrite.emitter import READ, SPLIT
from netsplit.rewrite.lowering import lowered_from
from netsplit.rewrite.samples import samples_axes
from netsplit.rewrite.tasks import OperatorTasks, Weights

__all__ = ["NodeMove", "NodePart", "NodeParts", "PartCut", "does", "moves_told", "node_parts", "parts_label"]

_FEW = 3  # parts whose numbers are told
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
class PartCut:
    """One cut that a part comes of."""

    index: int  # from 0
    count: int
    fraction: float  # of what was cut
    axis: int | str  # `Split.axis`
    blocks: int
    samples: bool  # the axis is that of the samples, as far as is known

    @property
    def number(self) -> str:
        """``1/2``."""
        return f"{self.index + 1}/{self.count}"

    @property
    def along(self) -> str:
        """``dimension 0``, ``dimension 1 of input``, ``the samples``."""
        argument, dot, place = str(self.axis).rpartition(".")
        if self.samples:
            return "the samples"
        if isinstance(self.axis, int) or (dot and place.isdecimal()):
            axis = f"dimension {place}{' of ' if dot else ''}{argument}"
        else:
            axis = self.axis
        return f"{axis}, in {self.blocks} blocks" if self.blocks > 1 else axis

    @property
    def short(self) -> str:
        """``1/2 of dim 0 · 50 %``, ``1/2 of input.1 · 50 %``, ``1/2 of samples · 50 %``."""
        axis = f"dim {self.axis}" if isinstance(self.axis, int) else self.axis
        return f"{self.number} of {'samples' if self.samples else axis} · {_percent(self.fraction)}"


@dataclass(frozen=True)
class NodePart:
    """What a node has of an operator, and where its weights come from."""

    operator: str  # as it was captured
    module: str
    cuts: tuple[PartCut, ...]  # the first first; several where a part was cut again; none: it is whole
    copy: int | None  # that it reads of its weights; None: it reads no copies
    variables: bool  # its weights are such, for which it may be on another device than they

    @property
    def fraction(self) -> float:
        """Of the operator."""
        whole = 1.0
        for cut in self.cuts:
            whole *= cut.fraction
        return whole

    @property
    def name(self) -> str:
        """``linear_2 (fc1)``."""
        return f"{self.operator} ({self.module})" if self.module else self.operator

    @property
    def which(self) -> str:
        """``part 1/2 of dimension 0``; ``whole``."""
        cuts = ", of which part ".join(f"{cut.number} of {cut.along}" for cut in self.cuts)
        return f"part {cuts}" if cuts else "whole"

    @property
    def told(self) -> str:
        """``linear_2 (fc1): part 1/2 of dimension 0 (50 %)``."""
        told = f"{self.which} ({_percent(self.fraction)})" if self.cuts else self.which
        copied = f", on copy {self.copy} of its weights" if self.copy is not None else ""
        return f"{self.name}: {told}{copied}{', its weights as variables' if self.variables else ''}"

    @property
    def lines(self) -> tuple[str, ...]:
        """As short as a box in a picture needs it, a line for each cut: ``1/2 of dim 0 · 50 %``."""
        if not self.cuts:
            if self.variables:
                return ("weights as variables",)
            return ("once more",) if self.copy is None else (f"copy {self.copy} of weights",)
        return tuple(cut.short for cut in self.cuts)


@dataclass(frozen=True)
class NodeMove:
    """What a node does for parts of an operator that is none of them."""

    does: str
    parts: tuple[NodePart, ...]  # of one operator, one or more

    @property
    def told(self) -> str:
        """``linear_2 (fc1), part 1/2 of dimension 0: take apart``."""
        first = self.parts[0]
        which = first.which
        if len(self.parts) > 1:
            which = f"{len(self.parts)} parts"
            if len(self.parts) <= _FEW and all(len(part.cuts) == 1 for part in self.parts):
                numbers = [part.cuts[0].number for part in self.parts]
                which = f"parts {', '.join(numbers[:-1])} and {numbers[-1]} of {first.cuts[0].along}"
        return f"{first.name}, {which}: {self.does}"


@dataclass(frozen=True)
class NodeParts:
    """Of a graph; empty where nothing was rewritten."""

    of: Mapping[
        str, NodePart
    ]  # by node; whole ones that read copies of weights, or weights as variables, too
    moving: frozenset[str]  # nodes that take tensors apart, put them together or hand weights on

    @cached_property
    def cut(self) -> Mapping[str, NodePart]:
        """Nodes that are no whole operator."""
        return {name: part for name, part in self.of.items() if part.cuts}

    @cached_property
    def operators(self) -> frozenset[str]:
        """The captured operators that are in parts."""
        return frozenset(part.operator for part in self.cut.values())

    @cached_property
    def sampled(self) -> frozenset[str]:
        """Those of them that are cut along the samples first."""
        return frozenset(part.operator for part in self.cut.values() if part.cuts[0].samples)

    def whole(self, names: Iterable[str]) -> int:
        """How many of these nodes are whole operators."""
        return sum(name not in self.cut and name not in self.moving for name in names)

    def look(self, name: str) -> tuple[str, ...]:
        """Nodes with the same one can be drawn as one box without anything being lost."""
        return ("moves",) if name in self.moving else self.of[name].lines if name in self.of else ()


@once_of
def node_parts(graph: Graph) -> NodeParts:
    """By the graph's own rewrites. An axis is known to be that of the samples where the graph was made of the
    captured one in this process."""
    state = lowered_from(graph)
    weights = {} if state is None else _weights(state.tasks)
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
        cuts = _cuts_of(node.part, samples)
        parts[node.name] = NodePart(node.part.operator, node.module, cuts, copy, read == "home")
    return NodeParts(parts, frozenset(moving))


def _weights(tasks: Mapping[str, OperatorTasks]) -> dict[str, Weights]:
    """By node, what it reads."""
    return {own.named(path, n): read for own in tasks.values() for path, _, n, read in own.tasks()}


def does(node: Node) -> str:
    """What a node of `NodeParts.moving` does, in a few words: "take apart"."""
    return _DOES.get(node.kind, "put together")


@once_of
def moves_told(graph: Graph) -> Mapping[str, tuple[NodeMove, ...]]:
    """Of every node of `NodeParts.moving`, and of every variable that one makes: what is done with it, for
    parts of which operators.

    What puts parts of an operator together, or counts for them, is for these; what takes tensors apart and
    hands weights on, for those that read what it makes.
    """
    parts = node_parts(graph)

    def served(name: str, outputs: Iterable[str]) -> Iterator[NodePart]:
        node = graph.nodes[name]
        readers = [v for k in outputs if k for v in graph.variables[k].consumers]
        reading = [v for v in readers if graph.nodes[v].part is not None]
        operator = node.part.operator if node.part is not None else ""
        own = [part for part in parts.of.values() if part.operator == operator]
        if own and not (node.op in (READ, SPLIT) and reading):
            yield from own
            return
        for reader in reading:
            if reader in parts.of:
                yield parts.of[reader]
            else:
                yield from served(reader, graph.nodes[reader].outputs)

    def moves(name: str, outputs: Iterable[str]) -> tuple[NodeMove, ...]:
        of: dict[str, list[NodePart]] = {}
        for part in dict.fromkeys(served(name, outputs)):
            of.setdefault(part.operator, []).append(part)
        return tuple(NodeMove(does(graph.nodes[name]), tuple(each)) for each in of.values())

    moving = [node for node in graph if node.name in parts.moving]
    made = {k: moves(node.name, [k]) for node in moving for k in node.outputs if k}
    return made | {node.name: moves(node.name, node.outputs) for node in moving}


def parts_label(parts: Sequence[NodePart], short: bool = False) -> str:
    """Of what runs together: ``part 1/2 of linear_2``, ``part 1/2 of 3 operators``, ``4 parts``; or "".

    Args:
        short: ``1/2`` instead.
    """
    if not parts:
        return ""
    if len({tuple(cut.number for cut in part.cuts) for part in parts}) > 1:
        return f"{len(parts)} parts"
    number = " of ".join(cut.number for cut in reversed(parts[0].cuts))
    if short:
        return number
    return f"part {number} of {parts[0].operator if len(parts) == 1 else f'{len(parts)} operators'}"


def _cuts_of(part: NodeRole, samples: Mapping[str, int | str]) -> tuple[PartCut, ...]:
    return tuple(
        PartCut(
            cut.index,
            cut.count,
            cut.fraction,
            cut.axis,
            cut.blocks,
            cut.blocks == 1 and not depth and samples.get(part.operator) == cut.axis,
        )
        for depth, cut in enumerate(part.cuts)
    )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if fraction >= 0.01 else f"{100 * fraction:.1g} %"
