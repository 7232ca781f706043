"""A graph while it is lowered: nodes are added in order, and run at once on tensors without data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from netsplit.errors import RewriteError
from netsplit.graph.analyse import Facts, analyse, is_spread, memory_order, repeated_dims
from netsplit.graph.arguments import Reference, read_by, renamed
from netsplit.graph.ir import CALL, INITIALIZER, Graph, Initializer, Node, NodeRole, Variable, once_of
from netsplit.graph.operators import resolve, written_references
from netsplit.graph.user_code import line_of
from netsplit.layout.regions import Region, both, through, whole_region
from netsplit.rewrite.layouts import MemoryLayout, NodeRun, StandInRuns, keep_layouts, layouts_of

__all__ = [
    "CAT", "MOVES", "READ", "SPLIT", "Emitter", "handed_on", "in_no_mode", "operator_named", "require_graph",
    "require_operators", "weights_of",
]  # fmt: skip

CAT, SPLIT, READ = "aten.cat.default", "aten.split_with_sizes.default", "aten.alias.default"
MOVES = frozenset([CAT, SPLIT, READ])


def require_graph(graph: object, what: str = "the graph to rewrite") -> None:
    """Raises `RewriteError`: it is no graph; `what` names it."""
    if not isinstance(graph, Graph):
        raise RewriteError(
            f"{what} is a {type(graph).__name__}: give a graph, as netsplit.graph.capture returns it."
        )


def operator_named(graph: Graph, name: str) -> Node:
    """The node of this name. Raises `RewriteError`: there is none."""
    if name not in graph.nodes:
        raise RewriteError(f"the graph has no operator '{name}': name one of its operators.")
    return graph.nodes[name]


def require_operators(graph: Graph) -> None:
    """Raises `RewriteError`: a node is neither torch's operator nor Python code, as in profiles of other
    projects."""
    for node in graph:
        try:
            known = node.op.startswith(CALL) or resolve(node.op)
        except (ValueError, AttributeError):
            known = None
        if not known:
            raise RewriteError(
                f"'{node.name}' is '{node.op}', which is not an operator of this torch, so it cannot be "
                "split: choose a method with whole nodes, such as dpos, or auto without splits."
            )


def in_no_mode(node: Node) -> bool:
    """Whether it runs in no mode of the model's own."""
    return not (node.no_grad or node.autocast or node.checkpoint)


@once_of
def handed_on(graph: Graph) -> dict[str, tuple[str, Region]]:
    """Variables of a captured graph that are regions of parameters: which, and where. Nobody writes these."""
    written = {k for node in graph for tag, k in written_references(graph, node) if tag == "init"}
    there: dict[str, tuple[str, Region]] = {}
    for node in graph:
        if node.op not in (READ, SPLIT) or not in_no_mode(node):
            continue
        ((tag, k),) = node.args[0].items()
        if (tag == "var" and k not in there) or k in written or k in graph.constants:
            continue
        name, region = (k, whole_region(graph.initializers[k].shape)) if tag == "init" else there[k]
        if node.op == READ:
            there[node.outputs[0]] = name, region
            continue
        dim, start = int(node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)), 0
        dim %= len(region)
        for output, size in zip(node.outputs, node.args[1], strict=True):
            runs = through(region[dim], ((both(start, start), both(start + size, start + size)),))
            there[output] = name, (*region[:dim], runs, *region[dim + 1 :])
            start += size
    return there


def weights_of(graph: Graph, node: Node) -> set[str]:
    """The parameters and buffers that an operator reads, if only as what is cut out of them."""
    there = handed_on(graph)
    read = {*node.initializers, *(there[k][0] for k in node.inputs if k in there)}
    return read - graph.constants.keys()


class Emitter:
    """What is made of a captured graph."""

    def __init__(self, captured: Graph) -> None:
        self.captured = captured
        self.plain = layouts_of(captured)
        self.layouts: dict[str, MemoryLayout] = {k: self.plain[k] for k in captured.input_variables}
        self.initializers: dict[str, Initializer] = dict(captured.initializers)
        self.nodes: dict[str, Node] = {}
        self.runs = StandInRuns(captured)
        self._names = {*captured.nodes, *captured.variables}
        self.written = frozenset(
            self.plain[k].root if tag == "var" else INITIALIZER + k
            for node in captured
            for tag, k in written_references(captured, node)
        )

    def is_written(self, reference: Reference) -> bool:
        tag, k = reference
        return (self.layouts[k].root if tag == "var" else INITIALIZER + k) in self.written

    def add_initializer(self, initializer: Initializer, whole: str) -> None:
        """One more. Raises `RewriteError`: another has its name."""
        if self.initializers.setdefault(initializer.name, initializer) != initializer:
            raise RewriteError(
                f"a copy of '{whole}' would be called '{initializer.name}', as another tensor is: rename it."
            )
        self.runs.initializers = self.initializers

    def fresh(self, name: str) -> str:
        """A name that no node and no variable has yet."""
        free, count = name, 1
        while free in self._names or f"{free}.0" in self._names:
            count += 1
            free = f"{name} {count}"
        self._names.add(free)
        return free

    def keep(self, node: Node, references: Mapping[Reference, Reference]) -> None:
        """A captured node, which may read other tensors than before; run again if those have another
        layout."""
        now = _reading(replace(node, **renamed(node, references))) if references else node
        as_it_was = not references and all(self.layouts[k] == self.plain[k] for k in node.inputs)
        if as_it_was or node.op.startswith(CALL):
            self.nodes[node.name] = now
            self.layouts |= {k: self.plain[k] for k in node.outputs if k}
            return
        try:
            run = self.runs.run(now, self.layouts)
            self._require_same_meaning(node, run)
        except Exception as error:
            raise RewriteError(
                f"'{node.name}' ({node.kind}) cannot read its joined parts, whose memory layout differs "
                f"({line_of(error)}): leave what feeds it whole."
            ) from error
        self.nodes[node.name] = replace(now, saved=run.saved, saved_bytes=run.saved_bytes)
        self.layouts |= {k: run.outputs.get(k, self.plain[k]) for k in node.outputs if k}

    def _require_same_meaning(self, node: Node, run: NodeRun) -> None:
        """Raises ValueError: the result depends on the layout of what it reads, which is another now."""
        pairs = [(self.plain[k].root, layout.root) for k, layout in run.outputs.items()]
        if any(before != now and not self.written.isdisjoint((before, now)) for before, now in pairs):
            raise ValueError("it would write to a copy instead of a view, or to a view instead of a copy")
        if "as_strided" in node.op:
            raise ValueError("it would select different elements")

    def emit(self, node: Node) -> Node:
        """Add a node, and run it. Raises `RewriteError`: it cannot be run on what it reads."""
        node = _reading(node)
        try:
            run = self.runs.run(node, self.layouts)
        except Exception as error:
            raise RewriteError(
                f"'{node.name}' ({node.kind}) does not run on its new inputs: {line_of(error)}."
            ) from error
        emitted = replace(node, saved=run.saved, saved_bytes=run.saved_bytes)
        self.nodes[node.name] = emitted
        self.layouts |= run.outputs
        self._names.update((node.name, *filter(None, node.outputs)))
        return emitted

    def move(
        self,
        name: str,
        op: str,
        args: tuple[Any, ...],
        like: Node,
        role: NodeRole,
        outputs: Sequence[str] = (),
    ) -> str:
        """A node that moves or adds up tensors for others; its only output."""
        own = tuple(outputs) or (name,)
        node = Node(name, op, (), own, args=args, module=like.module, source=like.source, part=role)
        return self.emit(node).outputs[0]

    def finish(self, rewrites: tuple[Any, ...]) -> Graph:
        """The graph, with all that a recording of it would show."""
        self._drop_unused()
        read = {k for node in self.nodes.values() for k in node.initializers}
        held = {k: init for k, init in self.initializers.items() if k in read}
        variables = self._variables()
        graph = replace(
            self.captured, nodes=self.nodes, variables=variables, initializers=held, rewrites=rewrites
        )
        facts = Facts(
            {k: self.layouts[k].root for k in graph.variables},
            {k: INITIALIZER + k for k in graph.initializers},
            frozenset(k for k in graph.variables if self.layouts[k].carries),
            {node.name: tuple(written_references(graph, node)) for node in graph},
        )
        graph = analyse(graph, facts)
        keep_layouts(graph, self.layouts, self.captured)
        return graph

    def _variables(self) -> dict[str, Variable]:
        producer_of = {k: node.name for node in self.nodes.values() for k in node.outputs if k}
        names = [*self.captured.input_variables, *producer_of]
        readers: dict[str, list[str]] = {k: [] for k in names}
        for node in self.nodes.values():
            for k in node.inputs:
                readers[k].append(node.name)
        return {k: self._variable(k, producer_of.get(k), tuple(readers[k])) for k in names}

    def _variable(self, k: str, producer: str | None, readers: tuple[str, ...]) -> Variable:
        """The variable as it was captured, where nothing about it is new."""
        own, known = self.layouts[k], self.captured.variables.get(k)
        as_it_was = known is not None and (known.producer, known.consumers) == (producer, readers)
        if known is not None and as_it_was and own is self.plain.get(k):
            return known
        lies = own.shape, own.stride
        order, repeated, spread = memory_order(*lies), repeated_dims(*lies), is_spread(*lies)
        return Variable(
            k, own.dtype, own.shape, producer, readers, order=order, repeated=repeated, spread=spread
        )

    def _drop_unused(self) -> None:
        """Drop movements and copies of operators that nobody needs."""
        wanted = set(self.captured.output_variables)
        kept: list[Node] = []
        for node in reversed(self.nodes.values()):
            spare = node.op in MOVES or (node.part is not None and (node.part.moves or node.part.copy > 0))
            if not spare or not wanted.isdisjoint(node.outputs):
                wanted.update(node.inputs)
                kept.append(node)
        self.nodes = {node.name: node for node in reversed(kept)}


def _reading(node: Node) -> Node:
    """The node with the inputs that its arguments read."""
    read = list(dict.fromkeys(read_by(node)))
    return replace(
        node,
        inputs=tuple(k for tag, k in read if tag == "var"),
        initializers=tuple(k for tag, k in read if tag == "init"),
    )
