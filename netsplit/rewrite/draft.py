"""A graph while it is rewritten: nodes come and go, and new ones are run at once on tensors without data.

    Draft.of(graph) ── emit, pieces, join, remove ──► finish() ──► a plain Graph, analysed

Pieces of a tensor are views, beside what makes it: the whole does not travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from netsplit.errors import RewriteError
from netsplit.graph.analyse import Facts, analyse
from netsplit.graph.arguments import Reference, read_by
from netsplit.graph.batches.strides import is_spread, memory_order, repeated_dims
from netsplit.graph.ir import CALL, INITIALIZER, Graph, Initializer, Node, Variable
from netsplit.graph.operators import resolve, written_references
from netsplit.rewrite.decisions import Decisions
from netsplit.rewrite.layouts import NodeRun, StandInRuns, keep_layouts, layouts_of
from netsplit.rewrite.moving.moves import (
    CAT,
    MOVES,
    READ,
    SPLIT,
    in_no_mode,
    move_key,
    moving_node,
    named_move,
)
from netsplit.rewrite.moving.runs import TensorRuns
from netsplit.rewrite.node_order import NodeOrder
from netsplit.rewrite.records import checked_field

__all__ = ["VIEWS", "Draft", "require_graph", "require_operators"]

VIEWS = "rewrite.views"
"""Under this a graph with parameters in parts has, derived, the one whose operators read views of wholes."""


def require_graph(graph: object, what: str = "what is to be rewritten") -> None:
    """Raises `RewriteError`: it is none; `what` it was to be."""
    if not isinstance(graph, Graph):
        raise RewriteError(
            f"{what} is a {type(graph).__name__}: give a graph, as netsplit.graph.capture makes of a model."
        )


def require_operators(graph: Graph) -> None:
    """Refuse what other projects profiled: its nodes say what they take, and not what they compute.

    Raises:
        RewriteError: a node that is neither an operator of torch nor Python code.
    """
    for node in graph:
        try:
            known = node.op.startswith(CALL) or resolve(node.op)
        except (ValueError, AttributeError):
            known = None
        if not known:
            raise RewriteError(
                f"'{node.name}' is '{node.op}', which is no operator of torch here, and nobody knows what "
                "parts of it would be: choose a method with whole nodes, as dpos, or auto without splits."
            )


class Draft:
    """What a graph becomes. `order` has the names of the nodes; `follow`: decisions to take again."""

    def __init__(self, graph: Graph, follow: Decisions | None = None) -> None:
        require_graph(graph)
        self._made_of_parts = graph.nodes
        graph = graph.derived.get(VIEWS, graph)
        require_operators(graph)
        self.layouts = layouts_of(graph)
        self.runs = StandInRuns(graph)
        self.graph = replace(graph, initializers=dict(graph.initializers))
        self.decisions = Decisions(follow)
        self.nodes = dict(graph.nodes)
        self.order = NodeOrder(graph.nodes)
        self.maker = {k: node.name for node in graph for k in node.outputs if k}
        self.new: set[str] = set()
        self._changed: set[str] = set()  # variables whose layout, or memory, is another than before
        self._made = {move_key(node): node.name for node in graph if node.op in MOVES}
        self._written = self._all_written()
        self._consists = TensorRuns(self.nodes, self.maker, self.layouts, self._written)

    def _all_written(self) -> frozenset[str]:
        """Roots of the memory that some node writes."""
        roots = set()
        for node in self.nodes.values():
            for tag, k in written_references(self.graph, node):
                roots.add(self.layouts[k].root if tag == "var" else INITIALIZER + k)
        return frozenset(roots)

    def is_written(self, reference: Reference) -> bool:
        tag, k = reference
        return (self.layouts[k].root if tag == "var" else INITIALIZER + k) in self._written

    def shape(self, reference: Reference) -> tuple[int, ...]:
        tag, k = reference
        return self.layouts[k].shape if tag == "var" else self.graph.initializers[k].shape

    def node(self, name: str) -> Node:
        """Raises `RewriteError` where there is none of this name."""
        checked_field("node", name)
        if name in self._made_of_parts and name not in self.nodes:
            raise RewriteError(
                f"'{name}' hands on a part of a parameter, which is cut where it is read: give an operator "
                "that reads it."
            )
        if name not in self.nodes:
            raise RewriteError(f"the graph has no operator '{name}': give the name of one that it has.")
        return self.nodes[name]

    def emit(self, node: Node, before: str | None = None, after: str | None = None) -> NodeRun:
        """Add a node before another, or after one ("": first of all), and run it.

        Raises:
            RewriteError: it cannot be run on what it reads.
        """
        read = list(dict.fromkeys(read_by(node)))
        node = replace(
            node,
            inputs=tuple(k for tag, k in read if tag == "var"),
            initializers=tuple(k for tag, k in read if tag == "init"),
        )
        try:
            run = self.runs.run(node, self.layouts)
        except Exception as error:
            raise RewriteError(
                f"'{node.name}' ({node.kind}) does not run on what it would read: {_first_line(error)}."
            ) from error
        self.nodes[node.name] = replace(node, saved=run.saved, saved_bytes=run.saved_bytes)
        if before is not None:
            self.order.put_before(node.name, before)
        else:
            self.order.put_after(node.name, after or "")
        self.new.add(node.name)
        for k, layout in run.outputs.items():
            if k in self.layouts and self.layouts[k] != layout:
                self._changed.add(k)
            self.layouts[k] = layout
            self.maker[k] = node.name
        if node.op in MOVES:
            self._made.setdefault(move_key(node), node.name)
        return run

    def fresh(self, name: str) -> str:
        """A name that no node has yet, nor a variable of what was replaced."""
        made, count = name, 1
        while made in self.nodes or made in self.layouts or f"{made}.0" in self.layouts:
            count += 1
            made = f"{name} {count}"
        return made

    def forget(self, name: str) -> None:
        """Hand out no more what a node makes, which is about to be replaced."""
        node = self.nodes[name]
        key = move_key(node) if node.op in MOVES else ""
        if self._made.get(key) == name:
            del self._made[key]

    def rename(self, name: str, other: str) -> None:
        """Give a node another name, which makes its own free; its outputs keep theirs."""
        self.forget(name)
        self.nodes[other] = replace(self.nodes.pop(name), name=other)
        self.order.rename(name, other)

    def remove(self, name: str) -> None:
        """What it made is to be made by others."""
        self.forget(name)
        node = self.nodes.pop(name)
        self.order.remove(name)
        self.new.discard(name)
        for k in node.outputs:
            if self.maker.get(k) == name:
                del self.maker[k]

    def read(self, initializer: str, like: Node) -> str:
        """The variable that an initializer is, for readers on any device: an alias of it, on its home.

        Raises:
            RewriteError: it is written.
        """
        if INITIALIZER + initializer in self._written:
            raise RewriteError(
                f"'{initializer}', which '{like.name}' ({like.kind}) uses, is written in every step, so that "
                "it cannot be read on other devices: leave that operator whole, on one device."
            )
        node = moving_node(f"{initializer}:read", READ, ({"init": initializer},), like)
        return self.once(node, after="")[0]

    def is_weight(self, k: str) -> bool:
        """Whether a variable is a piece of a parameter, which its readers do not read elsewhere yet."""
        node = self.nodes.get(self.maker.get(k, ""))
        if node is None or node.op == READ:
            return False
        while node is not None and node.op in (READ, SPLIT) and in_no_mode(node):
            ((tag, source),) = node.args[0].items()
            if tag == "init":
                return True
            node = self.nodes.get(self.maker.get(source, ""))
        return False

    def read_view(self, k: str, like: Node) -> str:
        """As `read`, of a variable that is a piece of a parameter."""
        return self.once(moving_node(f"{k}:read", READ, ({"var": k},), like), self.maker[k])[0]

    def add_initializer(self, initializer: Initializer) -> None:
        """One more, for operators that are given later."""
        more = {**self.graph.initializers, initializer.name: initializer}
        self.graph = replace(self.graph, initializers=more)
        self.runs.initializers = more

    def pieces(
        self, reference: Reference, dim: int, sizes: Sequence[int], blocks: int, like: Node
    ) -> list[str]:
        """The variables that a dimension falls into: each of its `blocks` equal blocks is cut by `sizes`."""
        handed = self.decisions.move(
            self._consists.handed_on(reference, dim, sizes, blocks),
            lambda each: self._consists.fit(each, reference[1], dim, sizes, blocks),
            like,
            self.graph.batch_size,
        )
        if handed is not None:
            return [
                names[0] if len(names) == 1 else self._together(names, dim, f"{reference[1]}.{i}", like)
                for i, names in enumerate(handed)
            ]
        tag, k = reference
        if blocks > 1 and tag == "init" and self.is_written(reference):
            raise RewriteError(
                f"'{like.name}' ({like.kind}) writes '{k}', of which parts of {blocks} blocks would be "
                "copies: give blocks=1."
            )
        args = ({tag: k}, list(sizes) * blocks, dim)
        after = self.maker.get(k, "") if tag == "var" else ""
        parts = self.once(moving_node(f"{k}:split{dim}", SPLIT, args, like, len(sizes) * blocks), after)
        if blocks == 1:
            return parts
        split = self.maker[parts[0]]
        return [
            self._together([parts[b * len(sizes) + i] for b in range(blocks)], dim, f"{split}.{i}", like)
            for i in range(len(sizes))
        ]

    def joined(
        self, parts: Sequence[str], dim: int, sizes: Sequence[int], blocks: int, like: Node
    ) -> list[str]:
        """The variables that are put together, in order, to undo `pieces`."""
        if blocks == 1:
            return list(parts)
        cut = [
            self.pieces(("var", k), dim, [size] * blocks, 1, like)
            for k, size in zip(parts, sizes, strict=True)
        ]
        return [each[b] for b in range(blocks) for each in cut]

    def _together(self, parts: Sequence[str], dim: int, name: str, like: Node) -> str:
        makers = [self.maker[k] for k in parts if k in self.maker]
        after = max(makers, key=self.order.place, default="")
        node = moving_node(f"{name}:cat", CAT, ([{"var": k} for k in parts], dim), like)
        return self.once(node, after)[0]

    def once(self, node: Node, after: str) -> list[str]:
        """The outputs of such a node, which may be there already."""
        writing = any(self.is_written(each) for each in read_by(node))
        key = move_key(node)
        same = self.decisions.move(
            None if writing else self._made.get(key),
            lambda each: each in self.nodes and move_key(self.nodes[each]) == key,
            node,
            self.graph.batch_size,
        )
        if same is not None and self.order.is_next_or_before(same, after):
            return list(self.nodes[same].outputs)
        if same is not None:  # it comes too late, and can come here as well
            self.order.remove(same)
            self.order.put_after(same, after)
            return list(self.nodes[same].outputs)
        name = self.fresh(node.name)
        node = named_move(node, name)
        self.emit(node, after=after)
        return list(node.outputs)

    def finish(self, rewrites: tuple[Any, ...] = ()) -> Graph:
        """The graph, with all that a recording of it would show.

        Args:
            rewrites: that were done, from the captured graph on (`Graph.rewrites`).

        Raises:
            RewriteError: a later operator cannot read what the parts make.
        """
        self._drop_unused()
        self._run_changed()
        nodes = {name: self.nodes[name] for name in self.order}
        read = {k for node in nodes.values() for k in node.initializers}
        graph = replace(
            self.graph,
            nodes=nodes,
            variables=self._variables(nodes),
            initializers={k: init for k, init in self.graph.initializers.items() if k in read},
            rewrites=rewrites,
        )
        facts = Facts(
            {k: self.layouts[k].root for k in graph.variables},
            {k: INITIALIZER + k for k in graph.initializers},
            frozenset(k for k in graph.variables if self.layouts[k].carries),
            {node.name: tuple(written_references(graph, node)) for node in graph},
        )
        graph = analyse(graph, facts)
        keep_layouts(graph, self.layouts, self.runs.graph)
        return graph

    def _variables(self, nodes: dict[str, Node]) -> dict[str, Variable]:
        names = [*self.graph.input_variables, *(k for node in nodes.values() for k in node.outputs if k)]
        readers: dict[str, list[str]] = {k: [] for k in names}
        for node in nodes.values():
            for k in node.inputs:
                readers[k].append(node.name)
        layouts = self.layouts
        return {
            k: Variable(
                k,
                layouts[k].dtype,
                layouts[k].shape,
                self.maker.get(k),
                tuple(readers[k]),
                order=memory_order(layouts[k].shape, layouts[k].stride),
                repeated=repeated_dims(layouts[k].shape, layouts[k].stride),
                spread=is_spread(layouts[k].shape, layouts[k].stride),
            )
            for k in names
        }

    def _drop_unused(self) -> None:
        """Movements that nobody needs any more."""
        wanted = set(self.graph.output_variables)
        for name in reversed(self.order):
            node = self.nodes[name]
            if node.op in MOVES and wanted.isdisjoint(node.outputs):
                self.remove(name)
            else:
                wanted.update(node.inputs)

    def _run_changed(self) -> None:
        """Again, what reads tensors that lie otherwise in memory, and so on."""
        for name in self.order:
            node = self.nodes[name]
            if name in self.new or node.op.startswith(CALL) or self._changed.isdisjoint(node.inputs):
                continue
            try:
                run = self.runs.run(node, self.layouts)
                self._require_same_meaning(node, run)
            except Exception as error:
                raise RewriteError(
                    f"'{name}' ({node.kind}) cannot read what parts were put together to, which lies in "
                    f"memory in another way ({_first_line(error)}): leave what feeds it whole."
                ) from error
            self.nodes[name] = replace(node, saved=run.saved, saved_bytes=run.saved_bytes)
            for k, layout in run.outputs.items():
                if layout != self.layouts[k]:
                    self._changed.add(k)
                    self.layouts[k] = layout

    def _require_same_meaning(self, node: Node, run: NodeRun) -> None:
        """Raises ValueError where its result goes by how that lies which it reads, and is another now."""
        pairs = [(self.layouts[k].root, layout.root) for k, layout in run.outputs.items()]
        if any(before != now and not self._written.isdisjoint((before, now)) for before, now in pairs):
            raise ValueError("what is written would be a copy where it was a view, or a view of it")
        if "as_strided" in node.op:
            raise ValueError("it would take other elements")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
