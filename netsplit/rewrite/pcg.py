"""The parallel computation graph: operators with what of them is computed where, and what lies between them.

    OperatorTasks of both ends ──layouts──► parallel operators of an edge ──► JSON, text, a picture (Graphviz)

    a by columns ──► x[n, S] ──combine──► [n, R] ──partition──► [S, R] ──► b by rows

The operators of an edge are what the layouts of its ends differ by, in one order: terms are added (reduce),
pieces put together (combine), a tensor cut (partition), and copied (replicate). Weights and inputs are whole.

Source: Unger et al., "Unity", OSDI 2022, section 3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from math import prod
from operator import and_, eq
from typing import Any, Literal, TypeAlias

from netsplit.errors import RewriteError, brief
from netsplit.graph.arguments import Reference
from netsplit.graph.ir import Graph
from netsplit.layout import Layout
from netsplit.rewrite.emitter import handed_on
from netsplit.rewrite.following import ways_of_graph
from netsplit.rewrite.laid_out_tasks import TaskLayouts, task_layouts
from netsplit.rewrite.tasks import OperatorTasks, axis_words
from netsplit.rewrite.ways import Place

__all__ = ["ParallelGraph", "ParallelOperator", "parallel_operators"]

Kind = Literal["reduce", "combine", "partition", "replicate"]
Pieces: TypeAlias = tuple[tuple[int, ...], int]  # sizes in each block, and how many blocks


@dataclass(frozen=True)
class ParallelOperator:
    """One of an edge, from a tensor to the argument of a reader.

    Args:
        degree: of how many terms, pieces or copies.
        dim: that is cut, or put together.
        sizes: of the pieces that partition cuts each of `blocks` into.
    """

    kind: Kind
    tensor: str
    reader: str
    argument: Place
    degree: int
    dim: int | None = None
    sizes: tuple[int, ...] = ()
    blocks: int = 1

    def __str__(self) -> str:
        return f"{self.kind} {self.degree}" + ("" if self.dim is None else f" of dimension {self.dim}")


@dataclass(frozen=True)
class _Spread:
    """A tensor as the graph has it: pieces of each dimension, outermost first; terms of a sum; copies."""

    cut: tuple[tuple[Pieces, ...], ...]
    terms: int = 1
    copies: int = 1

    @classmethod
    def of(cls, layout: Layout) -> _Spread:
        cut = tuple(tuple((layout.sizes[a], layout.blocks.get(a, 1)) for a in axes) for axes in layout.axes)
        terms = prod(layout.mesh.shape[axis] for axis in layout.partial)
        pieces = prod(len(sizes) for each in cut for sizes, _ in each)
        return cls(cut, terms, len(layout.mesh.devices) // terms // pieces)

    def until(self, read: _Spread) -> Iterator[tuple[Kind, int, int | None, tuple[int, ...], int]]:
        """What comes between: kind, degree, dimension, sizes and blocks."""
        if self.terms > 1:
            yield "reduce", self.terms, None, (), 1
        both = list(zip(self.cut, read.cut, strict=True))
        alike = [sum(accumulate(map(eq, ours, wanted), and_)) for ours, wanted in both]
        for dim, (ours, _) in enumerate(both):
            for sizes, _ in reversed(ours[alike[dim] :]):
                yield "combine", len(sizes), dim, (), 1
        for dim, (_, wanted) in enumerate(both):
            for sizes, blocks in wanted[alike[dim] :]:
                yield "partition", len(sizes), dim, sizes, blocks
        if read.copies not in (1, self.copies):
            more, rest = divmod(read.copies, self.copies)
            yield "replicate", read.copies if rest else more, None, (), 1


@dataclass(frozen=True)
class ParallelGraph:
    """Parallel operators of all edges, and each operator that is not whole on its mesh."""

    operators: tuple[ParallelOperator, ...]
    views: tuple[OperatorTasks, ...]

    @classmethod
    def of(cls, graph: Graph, tasks: Sequence[OperatorTasks]) -> ParallelGraph:
        """Raises `RewriteError`: as `task_layouts`."""
        return cls(tuple(parallel_operators(graph, tasks)), tuple(tasks))

    def tasks(self, graph: Graph) -> tuple[OperatorTasks, ...]:
        """Its views, between which its operators have to be what the layouts of the edges differ by.

        Raises:
            RewriteError: they are not, or the graph has no such operators; names the edge.
        """
        strange = {each.node for each in self.views} - graph.nodes.keys()
        if strange:
            raise RewriteError(f"the graph has no operator '{min(strange)}': give one that it has.")
        wanted, edges = _by_edge(parallel_operators(graph, self.views)), _by_edge(self.operators)
        for edge in {**wanted, **edges}:
            own, needed = (", ".join(map(str, each.get(edge, []))) or "nothing" for each in (edges, wanted))
            if own != needed or edges[edge] != wanted[edge]:
                raise RewriteError(f"{edge} has {own}, and its ends' layouts differ by {needed}: give that.")
        return self.views

    def to_dict(self) -> dict[str, Any]:
        views = [each.to_dict() for each in self.views]
        return {"operators": [asdict(each) for each in self.operators], "views": views}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ParallelGraph:
        """Reads what `to_dict` gave, after JSON.

        Raises:
            RewriteError: it is something else.
        """
        try:
            read: list[dict[str, Any]] = [
                {k: tuple(v) if isinstance(v, list) else v for k, v in each.items()}
                for each in values["operators"]
            ]
            views = tuple(map(OperatorTasks.from_dict, values["views"]))
            return cls(tuple(ParallelOperator(**each) for each in read), views)
        except (TypeError, KeyError, AttributeError) as error:
            raise RewriteError(f"a parallel graph is {brief(values)}: give what to_dict answers.") from error

    def summary(self) -> str:
        """A line an edge: 'linear ─► linear_1.input: combine 2 of dimension 1, replicate 4'."""
        edges = _by_edge(self.operators).items()
        return "\n".join(f"{edge}: {', '.join(map(str, operators))}" for edge, operators in edges)

    def dot(self, graph: Graph, devices: Mapping[str, Sequence[str]] | None = None) -> str:
        """A picture for Graphviz: parallel operators as boxes on their edges; without weights.

        Args:
            devices: of an operator, where it is known.
        """
        view_of, lines = {each.node: each for each in self.views}, list[str]()
        steps_of: dict[tuple[str, str], dict[str, None]] = {}
        for each in self.operators:
            steps_of.setdefault((each.tensor, each.reader), {})[str(each)] = None
        for name in graph.nodes:
            own = view_of.get(name, OperatorTasks(name))
            axes = (f"{axis_words(cut.axis, cut.blocks)} in {len(cut.sizes)}" for cut in own.cuts)
            view = (", ".join((devices or {}).get(name, ())),)
            label = "\n".join(filter(None, [name, *axes, *(f"{n} times" for n in own.copies), *view]))
            lines.append(f"  {json.dumps(name)} [label={json.dumps(label)}];")
        for u, v, k in graph.edges:
            between = steps_of.get((k, v), {})
            steps = [json.dumps(f"{k} {v} {label}") for label in between]
            labels = zip(steps, map(json.dumps, between), strict=True)
            lines += [f"  {step} [label={label}, shape=box];" for step, label in labels]
            way = [json.dumps(u), *steps, json.dumps(v)]
            lines += [f"  {a} -> {b};" for a, b in pairwise(way)]
        return "\n".join(["digraph {", *dict.fromkeys(lines), "}"])


def _by_edge(operators: Sequence[ParallelOperator]) -> dict[str, list[ParallelOperator]]:
    edges: dict[str, list[ParallelOperator]] = {}
    for each in operators:
        argument = each.argument if isinstance(each.argument, str) else ".".join(map(str, each.argument))
        edges.setdefault(f"{each.tensor} ─► {each.reader}.{argument}", []).append(each)
    return edges


def parallel_operators(graph: Graph, tasks: Sequence[OperatorTasks]) -> list[ParallelOperator]:
    """Parallel operators of all edges, by reader and argument; operators without tasks are whole.

    Raises:
        RewriteError: as `task_layouts`.
    """
    given = {each.node: each for each in tasks}
    layouts = {name: task_layouts(graph, given.get(name, OperatorTasks(name))) for name in graph.nodes}
    return [
        ParallelOperator(kind, reference[1], name, place, degree, dim, sizes, blocks)
        for name in graph.nodes
        for place, reference in _read(graph, name).items()
        if place in layouts[name].reads
        for kind, degree, dim, sizes, blocks in _spread_of(graph, reference, layouts).until(
            _Spread.of(layouts[name].reads[place])
        )
    ]


def _read(graph: Graph, name: str) -> dict[Place, Reference]:
    """What an operator reads; of what the model cuts out of a parameter, that parameter."""
    call, there = ways_of_graph(graph)[0][name], handed_on(graph)
    given = {place: call.reference(place) for place in call.tensors}
    return {
        p: ("init", there[k][0]) if tag == "var" and k in there else (tag, k) for p, (tag, k) in given.items()
    }


def _spread_of(graph: Graph, reference: Reference, layouts: Mapping[str, TaskLayouts]) -> _Spread:
    tag, k = reference
    if tag == "init":
        return _Spread(((),) * len(graph.initializers[k].shape))
    maker = graph.variables[k].producer
    if maker is None:
        return _Spread(((),) * len(graph.variables[k].shape))
    return _Spread.of(layouts[maker].makes[graph.nodes[maker].outputs.index(k)])
