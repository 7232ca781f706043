"""Whether algebra computes what the captured graph does: both on the same drawn values, in float64.

    what only one of two graphs has ──► what hangs together of it ──► results and all gradients, of both

All other operators read the same of both, so the loss and the gradients of parameters are the same, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from netsplit.errors import RewriteError
from netsplit.graph.arguments import Reference, read_by, renamed
from netsplit.graph.ir import Graph
from netsplit.graph.module import rebuild
from netsplit.rewrite.algebra.applying import CAPTURED
from netsplit.rewrite.algebra.patterns import shape_of
from netsplit.rewrite.algebra.rule import Algebra
from netsplit.rewrite.lowering import lowered_from

__all__ = ["require_same_algebra", "require_same_training"]

_CHECKED = "rewrite.algebra.checked"

TOLERANCE = 1e-10
"""Relative to the largest number of a tensor."""

ROWS = 32
"""Of a table, at most."""


_Pair: TypeAlias = tuple[Reference, Reference]
"""What others read in the captured graph, and what they read of the other in its place."""


def require_same_training(captured: Graph, after: Graph) -> None:
    """Results and gradients of what algebra changed; what is alike is compared once.

    Raises:
        RewriteError: some differ; names the operator.
    """
    import networkx  # a fifth of a second to load

    graphs, joined = (captured, after), networkx.Graph()
    for number, (one, other) in enumerate((graphs, graphs[::-1])):
        new = [node for node in one if node.name not in other.nodes]
        made = {("var", k) for node in new for k in node.outputs if k}
        for node in new:
            own = (("var", k) for k in node.outputs if k)
            near = {*own, *made.intersection(read_by(node)), *(("init", k) for k in node.initializers)}
            joined.add_edges_from(((number, node.name), each) for each in near)
    pairs = _pairs(captured, after)
    joined.add_edges_from(pair for pair in pairs if joined.has_node(pair[1]))
    known: set[str] = set()
    for together in networkx.connected_components(joined):
        nodes = [[name for name in graph.nodes if (i, name) in together] for i, graph in enumerate(graphs)]
        region = _Changed(graphs, nodes, [pair for pair in pairs if pair[0] in together])
        if region.said not in known:
            known.add(region.said)
            region.compare()


def require_same_algebra(graph: Graph) -> None:
    """`require_same_training` of what a graph with algebra was made of, once; others pass.

    Raises:
        RewriteError: as that.
    """
    lowered = lowered_from(graph)
    after = graph if lowered is None else lowered.captured
    captured = after.derived.get(CAPTURED)
    if captured is not None and _CHECKED not in after.derived:
        require_same_training(captured, after)
        after.derived[_CHECKED] = True


def _pairs(captured: Graph, after: Graph) -> list[_Pair]:
    pairs: dict[_Pair, None] = {}
    for node in after:
        if node.name in captured.nodes:
            pairs |= dict.fromkeys(zip(read_by(captured.nodes[node.name]), read_by(node), strict=True))
    pairs |= {(("var", k), ("var", k)): None for k in captured.output_variables}
    gone = captured.nodes.keys() - after.nodes.keys()
    return [pair for pair in pairs if pair[0][0] == "var" and captured.variables[pair[0][1]].producer in gone]


@dataclass
class _Changed:
    """What hangs together of what two graphs have of their own."""

    graphs: tuple[Graph, Graph]
    nodes: Sequence[Sequence[str]]
    pairs: Sequence[_Pair]

    @property
    def said(self) -> str:
        """The same for regions that are the same but for names."""
        numbers: dict[Reference, int] = {}
        said: list[Any] = []
        for graph, names in zip(self.graphs, self.nodes, strict=True):
            for node in map(graph.nodes.__getitem__, names):
                every = [*read_by(node), *(("var", k) for k in node.outputs if k)]
                own = {each: numbers.setdefault(each, len(numbers)) for each in every}
                call = renamed(node, {each: (each[0], str(number)) for each, number in own.items()})
                said.append(
                    (node.op, call, [(number, shape_of(graph, each)) for each, number in own.items()])
                )
        return repr([said, [(numbers.get(a), numbers.get(b)) for a, b in self.pairs]])

    def compare(self) -> None:
        given = self._drawn()
        ones = _computed(self.graphs[0], self.nodes[0], given, [k for (_, k), _ in self.pairs])
        others = _computed(self.graphs[1], self.nodes[1], given, [k for _, (_, k) in self.pairs])
        for one, other in zip(ones, others, strict=True):
            size = float(one.nan_to_num(0.0, 0.0, 0.0).abs().max()) if one.numel() else 0.0
            same = one.shape == other.shape
            if not (same and torch.allclose(one, other, rtol=0.0, atol=TOLERANCE * size, equal_nan=True)):
                raise RewriteError(self._refusal)

    @property
    def _refusal(self) -> str:
        names = {*self.nodes[0]}
        made = (each for each in self.graphs[1].rewrites if each.node.split("+")[0] in names)
        rules = ", ".join(dict.fromkeys(f"'{each.rule.name}'" for each in made if isinstance(each, Algebra)))
        return f"{rules} in the place of '{self.nodes[0][0]}' computes something else: a rule is wrong."

    def _drawn(self) -> dict[Reference, Tensor]:
        """Values of all that is read and not made; of tables that are only looked up in, the first rows."""
        given: dict[Reference, Tensor] = {}
        generator = torch.Generator().manual_seed(0)
        nodes = [
            [graph.nodes[v] for v in names] for graph, names in zip(self.graphs, self.nodes, strict=True)
        ]
        tables, others = dict[Reference, int](), set[Reference]()
        for graph, node in ((g, node) for g, own in zip(self.graphs, nodes, strict=True) for node in own):
            looked_up = read_by(node)[:1] if "embedding" in node.op else []
            tables |= {each: shape_of(graph, each)[0] for each in looked_up}
            others |= {*read_by(node)[len(looked_up) :]}
        rows = min([*tables.values(), ROWS])
        instead: tuple[list[Reference], list[Reference]] = [], [own for _, own in self.pairs]
        for graph, own, later in zip(self.graphs, nodes, instead, strict=True):
            made = {("var", k) for node in own for k in node.outputs}
            read = dict.fromkeys([*(each for node in own for each in read_by(node)), *later])
            for tag, k in (each for each in read if each not in made):
                shape = shape_of(graph, (tag, k))
                if (tag, k) in tables.keys() - others:
                    shape = (rows, *shape[1:])
                if (graph.variables if tag == "var" else graph.initializers)[k].dtype.startswith("int"):
                    drawn = torch.randint(rows, shape, generator=generator)
                else:
                    drawn = torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
                    drawn = nn.Parameter(drawn) if tag == "init" else drawn
                given.setdefault((tag, k), drawn)
        return given


def _computed(
    graph: Graph, names: Sequence[str], given: Mapping[Reference, Tensor], wanted: Sequence[str]
) -> list[Tensor]:
    """What is wanted of some nodes, and the gradients of all that is given."""
    inputs = [k for tag, k in given if tag == "var"]
    values = {k: value for (tag, k), value in given.items() if tag == "init"}
    module = rebuild(graph, values, nodes=names, inputs=inputs, outputs=wanted)
    made = module(*(given["var", k] for k in inputs))
    draws = torch.Generator().manual_seed(1)
    weights = [torch.randn(each.shape, dtype=each.dtype, generator=draws) for each in made]
    trained = [value for value in given.values() if value.requires_grad]
    grads = torch.autograd.grad(made, trained, weights, allow_unused=True, materialize_grads=True)
    return [*(each.detach() for each in made), *grads]
