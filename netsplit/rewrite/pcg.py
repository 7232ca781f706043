"""The parallel computation graph: operators with what of them is computed where, and what lies between them.

    OperatorTasks of both ends ──layouts──► parallel operators of an edge ──► JSON, text

    a by columns ──► x[n, S] ──combine──► [n, R] ──partition──► [S, R] ──► b by rows

The operators of an edge are what the layouts of its ends differ by, in one order: terms are added (reduce),
pieces put together (combine), a tensor cut (partition), and copied (replicate). Weights and inputs are whole.

Source: Unger et al., "Unity", OSDI 2022, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from math import prod
from operator import and_, eq
from typing import Any, Literal, TypeAlias

from netsplit.errors import RewriteError, brief
from netsplit.graph.ir import Graph
from netsplit.layout import DeviceName, Layout, Mesh
from netsplit.rewrite.emitter import handed_on
from netsplit.rewrite.following import ways_of_graph
from netsplit.rewrite.layouts import layouts_of
from netsplit.rewrite.leaves import LeafPlanner
from netsplit.rewrite.tasks import OperatorTasks
from netsplit.rewrite.ways import Cat, Place, Where

__all__ = [
    "SUM", "LiesAlong", "ParallelGraph", "ParallelOperator", "TaskLayouts", "layout_of_cuts",
    "parallel_operators", "task_layouts",
]  # fmt: skip

Kind = Literal["reduce", "combine", "partition", "replicate"]
SUM: Literal["sum"] = "sum"
LiesAlong: TypeAlias = Where | Literal["sum"] | None
"""How a tensor lies along an axis of a mesh: cut there, a term of a sum, or whole."""


@dataclass(frozen=True)
class ParallelOperator:
    """One of an edge, from a tensor to the argument of a reader."""

    kind: Kind
    tensor: str
    reader: str
    argument: Place
    degree: int  # of how many terms, pieces or copies
    dim: int | None = None  # that is cut, or put together
    sizes: tuple[int, ...] = ()  # of the pieces that partition cuts each of `blocks` into
    blocks: int = 1

    def __str__(self) -> str:
        return f"{self.kind} {self.degree}" + ("" if self.dim is None else f" of dimension {self.dim}")


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
            raise RewriteError(f"the graph has no operator '{min(strange)}': name one of its operators.")
        wanted, edges = _by_edge(parallel_operators(graph, self.views)), _by_edge(self.operators)
        for edge in {**wanted, **edges}:
            own, needed = (", ".join(map(str, each.get(edge, []))) or "nothing" for each in (edges, wanted))
            if own != needed or edges[edge] != wanted[edge]:
                raise RewriteError(f"{edge} has {own}, but the layouts of its ends need {needed}: give that.")
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
            raise RewriteError(
                f"a parallel graph is {brief(values)}: give what to_dict() returns."
            ) from error

    def summary(self) -> str:
        """A line an edge: 'linear ─► linear_1.input: combine 2 of dimension 1, replicate 4'."""
        edges = _by_edge(self.operators).items()
        return "\n".join(f"{edge}: {', '.join(map(str, operators))}" for edge, operators in edges)


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
    calls, weights = ways_of_graph(graph)[0], handed_on(graph)
    operators = []
    for name, own in layouts.items():
        for place, read in own.reads.items():
            made, (tag, k) = None, calls[name].reference(place)
            if tag == "var" and k in weights:  # what the model cuts out of a parameter is that parameter
                tag, k = "init", weights[k][0]
            if tag == "var" and (maker := graph.variables[k].producer) is not None:
                made = layouts[maker].makes[graph.nodes[maker].outputs.index(k)]
            operators += [ParallelOperator(kind, k, name, place, *own) for kind, *own in _between(made, read)]
    return operators


def _between(made: Layout | None, read: Layout) -> Iterator[tuple[Any, ...]]:
    """Kind, degree, dimension, sizes and blocks of what is between layouts; None: whole, on one device."""
    terms, copies, ours = (1, 1, [()] * len(read.axes)) if made is None else _spread(made)
    _, wanted_copies, wanted = _spread(read)
    if terms > 1:
        yield "reduce", terms
    both = list(zip(ours, wanted, strict=True))
    alike = [sum(accumulate(map(eq, own, other), and_)) for own, other in both]
    for dim, (own, _) in enumerate(both):
        for sizes, _ in reversed(own[alike[dim] :]):
            yield "combine", len(sizes), dim
    for dim, (_, other) in enumerate(both):
        for sizes, blocks in other[alike[dim] :]:
            yield "partition", len(sizes), dim, sizes, blocks
    if wanted_copies not in (1, copies):
        more, rest = divmod(wanted_copies, copies)
        yield "replicate", wanted_copies if rest else more


def _spread(layout: Layout) -> tuple[int, int, Sequence[tuple[tuple[tuple[int, ...], int], ...]]]:
    """Terms of a sum; copies; for each dimension sizes and blocks of its pieces, outermost first."""
    cut = [tuple((layout.sizes[a], layout.blocks.get(a, 1)) for a in axes) for axes in layout.axes]
    terms = prod(layout.mesh.shape[axis] for axis in layout.partial)
    pieces = prod(len(sizes) for each in cut for sizes, _ in each)
    return terms, len(layout.mesh.devices) // terms // pieces, cut


@dataclass(frozen=True)
class TaskLayouts:
    """The layouts of one operator's tensors under its tasks."""

    mesh: Mesh
    reads: dict[Place, Layout]  # arguments; without those that its first part alone is given
    makes: tuple[Layout, ...]  # outputs, in order


def task_layouts(graph: Graph, tasks: OperatorTasks, devices: Sequence[DeviceName] = ()) -> TaskLayouts:
    """Cut, whole or partial along each axis of the tasks' mesh, of which the copies have the last ones:
    a product cut by columns, then rows, has x: "S1R", w: "S0R", y: "S1S0".

    Args:
        devices: of the mesh, in row-major order; numbers, if none are given.

    Raises:
        RewriteError: a part is cut alone, which lies on no mesh; or the operator cannot be cut so.
    """
    if any(cut.part is not None for cut in tasks.cuts):
        raise RewriteError(f"'{tasks.node}' has a part that was cut separately, which fits no mesh.")
    shape = (*(len(cut.sizes) for cut in tasks.cuts), *tasks.copies)
    mesh = Mesh(tuple(devices) or tuple(range(prod(shape))), shape)
    leaf = LeafPlanner(graph, layouts_of(graph)).leaves(tasks)[0]
    ways = [way for way, _ in leaf.levels]

    def layout(rank: int, where: Sequence[LiesAlong]) -> Layout:
        cuts = enumerate(zip(where, tasks.cuts, strict=True))
        return layout_of_cuts(mesh, rank, ((m, own, cut.sizes, cut.blocks) for m, (own, cut) in cuts))

    once = frozenset[str]().union(*(way.once for way in ways))
    reads = {
        place: layout(len(region), [way.cut.get(place) for way in ways])
        for place, (_, region) in leaf.reads.items()
        if place not in once
    }
    makes = []
    for j, output in enumerate(leaf.makes):
        joined = [way.joined[j] for way in ways]
        where = [how.where if isinstance(how, Cat) else SUM for how in joined]
        makes.append(layout(len(output.region), where))
    return TaskLayouts(mesh, reads, tuple(makes))


def layout_of_cuts(
    mesh: Mesh, rank: int, cuts: Iterable[tuple[int, LiesAlong, tuple[int, ...], int]]
) -> Layout:
    """The layout of a tensor that lies so along axes of a mesh, each with sizes and blocks of its pieces."""
    cut_by, sizes, blocks, partial = [""] * rank, {}, {}, list[int]()
    for axis, where, pieces, count in cuts:
        if where == SUM:
            partial.append(axis)
        elif isinstance(where, Where):
            cut_by[where.dim] += str(axis)
            sizes[axis] = tuple(size * where.times for size in pieces)
            blocks[axis] = where.blocks * count
    spec = "".join(f"S{axes}" if axes else "R" for axes in cut_by)
    return Layout(mesh, spec, sizes, blocks, tuple(partial))
