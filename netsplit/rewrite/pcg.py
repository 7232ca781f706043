"""The parallel computation graph: operators with what of them is computed where, and what lies between them.

    OperatorTasks of both ends ──layouts──► parallel operators of an edge ──► JSON, text, a picture (Graphviz)
    parallel operators, meshes ──────────► OperatorTasks

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
from netsplit.rewrite.leaves import chosen_way
from netsplit.rewrite.tasks import OperatorTasks, TaskCut
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
        alike = [sum(accumulate(map(eq, made, wanted), and_)) for made, wanted in both]
        for dim, (made, _) in enumerate(both):
            for sizes, _ in reversed(made[alike[dim] :]):
                yield "combine", len(sizes), dim, (), 1
        for dim, (_, wanted) in enumerate(both):
            for sizes, blocks in wanted[alike[dim] :]:
                yield "partition", len(sizes), dim, sizes, blocks
        if read.copies not in (1, self.copies):
            more, rest = divmod(read.copies, self.copies)
            yield "replicate", read.copies if rest else more, None, (), 1

    def after(self, operators: Sequence[ParallelOperator]) -> _Spread:
        """Raises `RewriteError`: one of them has nothing to work on."""
        cut, terms, copies = [list(each) for each in self.cut], self.terms, self.copies
        for each in operators:
            own = cut[each.dim] if each.dim is not None and each.dim < len(cut) else []
            if each.kind == "reduce" and each.degree == terms:
                terms = 1
            elif each.kind == "combine" and own and len(own[-1][0]) == each.degree:
                own.pop()
            elif each.kind == "partition" and each.dim is not None and len(each.sizes) == each.degree:
                own.append((each.sizes, each.blocks))
            elif each.kind == "replicate":
                copies *= each.degree
            else:
                raise RewriteError(
                    f"'{each}' of {each.tensor} before '{each.reader}' does not fit how it is cut."
                )
        if terms > 1:
            reader = operators[0].reader if operators else "its reader"
            raise RewriteError(f"{reader} reads one of {terms} terms of a sum: give a reduce before it.")
        return _Spread(tuple(map(tuple, cut)), 1, copies)


@dataclass(frozen=True)
class ParallelGraph:
    """Parallel operators of all edges, and of each operator that is not whole its mesh.

    Args:
        views: what `OperatorTasks.to_dict` gives, of whose cuts sizes and blocks are left to the parallel
            operators: these say them, but where no argument is cut along an axis.
    """

    operators: tuple[ParallelOperator, ...]
    views: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, graph: Graph, tasks: Sequence[OperatorTasks]) -> ParallelGraph:
        """Raises `RewriteError`: as `task_layouts`."""
        return cls(tuple(parallel_operators(graph, tasks)), tuple(_view(graph, each) for each in tasks))

    def tasks(self, graph: Graph) -> tuple[OperatorTasks, ...]:
        """What the operators and meshes say of the graph's operators.

        Raises:
            RewriteError: they contradict one another, or the graph.
        """
        view_of = {view["node"]: view for view in self.views}
        own: dict[tuple[str, Place], list[ParallelOperator]] = {}
        for each in self.operators:
            own.setdefault((each.reader, each.argument), []).append(each)
        strange = {reader for reader, _ in own} - graph.nodes.keys() | view_of.keys() - graph.nodes.keys()
        if strange:
            raise RewriteError(f"the graph has no operator '{min(strange)}': give one that it has.")
        made: dict[str, TaskLayouts] = {}
        chosen: dict[str, OperatorTasks] = {}
        for name in graph.nodes:
            reads = {
                place: _made(graph, reference, made).after(own.get((name, place), ()))
                for place, reference in _read(graph, name).items()
            }
            chosen[name] = _tasks_of(graph, view_of.get(name, _view(graph, OperatorTasks(name))), reads)
            made[name] = task_layouts(graph, chosen[name])
        return tuple(chosen[view["node"]] for view in self.views)

    def to_dict(self) -> dict[str, Any]:
        return {"operators": [asdict(each) for each in self.operators], "views": list(self.views)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ParallelGraph:
        """Of what `to_dict` gave, after JSON.

        Raises:
            RewriteError: it is something else.
        """
        try:
            read: list[dict[str, Any]] = [
                {k: tuple(v) if isinstance(v, list) else v for k, v in each.items()}
                for each in values["operators"]
            ]
            return cls(tuple(ParallelOperator(**each) for each in read), tuple(values["views"]))
        except (TypeError, KeyError, AttributeError) as error:
            raise RewriteError(f"a parallel graph is {brief(values)}: give what to_dict answers.") from error

    def summary(self) -> str:
        """A line an edge: 'linear ─► linear_1.input: combine 2 of dimension 1, replicate 4'."""
        edges: dict[str, list[str]] = {}
        for each in self.operators:
            argument = each.argument if isinstance(each.argument, str) else ".".join(map(str, each.argument))
            edges.setdefault(f"{each.tensor} ─► {each.reader}.{argument}", []).append(str(each))
        return "\n".join(f"{edge}: {', '.join(told)}" for edge, told in edges.items())

    def dot(self, graph: Graph) -> str:
        """A picture for Graphviz: parallel operators as boxes on their edges; without weights."""
        between: dict[tuple[str, str], dict[str, str]] = {}
        for each in self.operators:
            step = f"{each.tensor} {each.reader} {each}"
            between.setdefault((each.tensor, each.reader), {})[step] = str(each)
        told = {name: name for name in graph.nodes}
        for view in self.views:
            told[view["node"]] += "".join(f"\n{cut['axis']} in {cut['parts']}" for cut in view["cuts"])
            told[view["node"]] += "".join(f"\n{n} times" for n in view["copies"])
        steps = {step: label for u, v, k in graph.edges for step, label in between.get((k, v), {}).items()}
        lines = [f"  {json.dumps(name)} [label={json.dumps(label)}];" for name, label in told.items()]
        lines += [
            f"  {json.dumps(each)} [label={json.dumps(label)}, shape=box];" for each, label in steps.items()
        ]
        for u, v, k in graph.edges:
            way = [u, *between.get((k, v), {}), v]
            lines += [f"  {json.dumps(a)} -> {json.dumps(b)};" for a, b in pairwise(way)]
        return "\n".join(["digraph {", *lines, "}"])


def parallel_operators(graph: Graph, tasks: Sequence[OperatorTasks]) -> list[ParallelOperator]:
    """Of all edges, in the order of the readers and their arguments; operators without tasks are whole.

    Raises:
        RewriteError: as `task_layouts`.
    """
    given = {each.node: each for each in tasks}
    made = {name: task_layouts(graph, given.get(name, OperatorTasks(name))) for name in graph.nodes}
    return [
        ParallelOperator(kind, reference[1], name, place, degree, dim, sizes, blocks)
        for name in graph.nodes
        for place, reference in _read(graph, name).items()
        if place in made[name].reads
        for kind, degree, dim, sizes, blocks in _made(graph, reference, made).until(
            _Spread.of(made[name].reads[place])
        )
    ]


def _read(graph: Graph, name: str) -> dict[Place, Reference]:
    """What an operator reads; of what the model cuts out of a parameter, that parameter."""
    call, there = ways_of_graph(graph)[0][name], handed_on(graph)
    given = {place: call.reference(place) for place in call.tensors}
    return {
        p: ("init", there[k][0]) if tag == "var" and k in there else (tag, k) for p, (tag, k) in given.items()
    }


def _made(graph: Graph, reference: Reference, made: Mapping[str, TaskLayouts]) -> _Spread:
    tag, k = reference
    if tag == "init":
        return _Spread(((),) * len(graph.initializers[k].shape))
    maker = graph.variables[k].producer
    if maker is None:
        return _Spread(((),) * len(graph.variables[k].shape))
    return _Spread.of(made[maker].makes[graph.nodes[maker].outputs.index(k)])


def _view(graph: Graph, tasks: OperatorTasks) -> dict[str, Any]:
    call = ways_of_graph(graph)[0][tasks.node]
    cuts = []
    for cut in tasks.cuts:
        _, way = chosen_way(call, cut.axis, graph)
        told = {"axis": cut.axis, "parts": len(cut.sizes)}
        known = any(place not in way.once for place in way.cut)
        cuts.append(told if known else told | {"sizes": cut.sizes, "blocks": cut.blocks})
    return tasks.to_dict() | {"cuts": cuts}


def _tasks_of(graph: Graph, view: Mapping[str, Any], reads: Mapping[Place, _Spread]) -> OperatorTasks:
    """Raises `RewriteError`: the operators before it cut what it reads along no axis of its mesh."""
    call = ways_of_graph(graph)[0][view["node"]]
    left = {place: [list(pieces) for pieces in each.cut] for place, each in reads.items()}
    ways = [chosen_way(call, each["axis"], graph)[1] for each in view["cuts"]]
    once = {place for way in ways for place in way.once}
    cuts = []
    for each, way in zip(view["cuts"], ways, strict=True):
        told = {(tuple(each["sizes"]), each["blocks"])} if "sizes" in each else set()
        for place, where in way.cut.items():
            if place in once:
                continue
            sizes, blocks = left[place][where.dim].pop(0) if left[place][where.dim] else ((), 1)
            told.add((tuple(size // where.times for size in sizes), blocks // where.blocks))
        (sizes, blocks), *others = told
        if others or len(sizes) != each["parts"]:
            raise call.error(each["axis"], f"what it reads is not cut in {each['parts']} parts alike")
        cuts.append(TaskCut(each["axis"], sizes, blocks))
    rest = next((p for p, dims in left.items() if p not in once and any(dims)), None)
    if rest is not None:
        raise call.error(None, f"{rest!r} is cut along none of the axes of its mesh: combine it")
    kept = {key: value for key, value in view.items() if key != "cuts"}
    return OperatorTasks.from_dict(kept | {"cuts": [asdict(cut) for cut in cuts]})
