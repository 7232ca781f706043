"""Parameters in parts: what operators in parts read of a weight becomes an initializer of its own.

    w ─► split ─┬─► [linear:0]     becomes     w[0:4] ─► [linear:0]
                └─► [linear:1]                 w[4:8] ─► [linear:1]

A part is held, with its gradient and the optimiser's state, where the operator is that reads it, and nowhere
is w whole. One that several operators read is a variable for them, sent from its home. Where what is read of
a parameter overlaps, or is not all of it, it stays whole, and views of it are sent.

Of copies (`netsplit.rewrite.copies`) the same holds of each; those of one parameter are cut alike, or whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate, combinations
from math import prod
from typing import TypeAlias

from netsplit.graph.arguments import Reference, renamed
from netsplit.graph.ir import Graph, Initializer, Node, Region
from netsplit.rewrite.draft import VIEWS, Draft
from netsplit.rewrite.layouts import keep_layouts, layouts_of
from netsplit.rewrite.moving.moves import CAT, READ, SPLIT, dim_of, in_no_mode

__all__ = ["gathered", "parameters_in_parts"]


_Box: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes


@dataclass(frozen=True)
class _View:
    """A variable that is a region of an initializer. `read`: to be read elsewhere, by `ReadWeights`."""

    initializer: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    read: bool = False

    @property
    def box(self) -> _Box:
        return self.offsets, self.sizes


def parameters_in_parts(graph: Graph) -> Graph:
    """The graph whose operators read parts and copies of parameters, as far as they can; it remembers the
    one before."""
    graph = _numbered_from_0(graph)
    views = _views(graph)
    readers = {
        k: [v for v in graph.variables[k].consumers if not views.keys() & set(graph.nodes[v].outputs)]
        for k in views
    }
    read: dict[str, list[str]] = {}
    for k, view in views.items():
        if readers[k]:
            read.setdefault(view.initializer, []).append(k)
    whole = {k for node in graph for k in node.initializers if not views.keys() & set(node.outputs)}
    cut = _cut(graph, {init: [views[k] for k in names] for init, names in read.items()}, whole)
    draft = _with(graph, [part for own in cut.values() for part in own.values()])
    cut = {init: own for init, own in cut.items() if not draft.is_written(("init", init))}
    if not cut:
        return graph
    instead: dict[str, dict[Reference, Reference]] = {}
    for init, parts in cut.items():
        for box, part in parts.items():
            names = [k for k in read[init] if views[k].box == box]
            users = [(v, k) for k in names for v in readers[k]]
            alone = len(users) == 1 and not views[names[0]].read and part.name not in whole
            now = ("init", part.name) if alone else ("var", draft.read(part.name, draft.node(users[0][0])))
            for v, k in users:
                instead.setdefault(v, {})["var", k] = now
    for v, references in instead.items():
        _replace_references(draft, v, references)
    made = draft.finish(graph.rewrites)
    made.derived[VIEWS] = graph
    return made


def _numbered_from_0(graph: Graph) -> Graph:
    """Of what is read in copies alone, the first of them is the parameter itself."""
    first = {
        each.region.whole: each
        for each in sorted(
            (each for each in graph.initializers.values() if each.region is not None),
            key=lambda each: -each.region.copy if each.region is not None else 0,
        )
        if each.region is not None and each.region.whole not in graph.initializers
    }
    if not first:
        return graph
    draft = _with(graph, [each.whole for each in first.values()])
    for each in first.values():
        for node in graph:
            if each.name in node.initializers:
                _replace_references(draft, node.name, {("init", each.name): ("init", each.whole.name)})
    return draft.finish(graph.rewrites)


def _cut(
    graph: Graph, views: Mapping[str, Sequence[_View]], whole: Set[str]
) -> dict[str, dict[_Box, Initializer]]:
    """Of every initializer that becomes others: the region that each is, and it.

    The copies of a parameter are cut alike, or are all whole. A region's copies are numbered from 0.
    """
    copies: dict[str, list[str]] = {}
    for k in dict.fromkeys([*views, *whole]):
        copies.setdefault(graph.initializers[k].whole.name, []).append(k)
    cut: dict[str, dict[_Box, Initializer]] = {}
    for name, own in copies.items():
        own.sort(key=lambda k: _number(graph.initializers[k]))
        initializer = graph.initializers[own[0]].whole
        every = [view for k in own for view in views.get(k, ())]
        if name in graph.constants or not every:
            continue
        if whole.isdisjoint(own) and _fall_apart(initializer, every):
            numbers: Counter[_Box] = Counter()
            for k in own:
                boxes = dict.fromkeys(view.box for view in views[k])
                cut[k] = {box: _part(initializer, box, numbers[box]) for box in boxes}
                numbers.update(boxes.keys())
        elif len(own) > 1 and all(view.sizes == initializer.shape for view in every):
            box = ((0,) * len(initializer.shape), initializer.shape)
            cut |= {k: {box: graph.initializers[k]} for k in own if k in views}
    return cut


def _number(initializer: Initializer) -> int:
    return 0 if initializer.region is None else initializer.region.copy


def gathered(graph: Graph, parts: Sequence[Initializer]) -> Graph:
    """A graph that reads no parameter whole which is in parts elsewhere: it is put together where it is read.

    Args:
        parts: all those of each of their parameters.
    """
    own = {part.region.whole: part for part in parts if part.region}
    wanted = {k for k in own if k in graph.initializers}
    if not wanted:
        return graph
    draft = _with(graph, parts)
    for k in sorted(wanted):
        users = [node for node in graph if k in node.initializers]
        pieces = {
            (part.region.offsets, part.shape): draft.read(part.name, users[0])
            for part in parts
            if part.region is not None and part.region.whole == k
        }
        after = max(pieces.values(), key=lambda name: draft.order.place(draft.maker[name]))
        made = _put_together(draft, pieces, users[0], f"{k}:whole", [draft.maker[after]])
        for node in users:
            _replace_references(draft, node.name, {("init", k): ("var", made)})
    return draft.finish()


def _with(graph: Graph, parts: Sequence[Initializer]) -> Draft:
    """A draft of the graph with these initializers, too."""
    more = {part.name: part for part in parts}
    extended = replace(graph, initializers={**graph.initializers, **more})
    keep_layouts(extended, layouts_of(graph), graph)
    return Draft(extended)


def _replace_references(draft: Draft, name: str, references: Mapping[Reference, Reference]) -> None:
    node, anchor = draft.node(name), f"{name} (before)"
    draft.rename(name, anchor)
    draft.emit(replace(node, **renamed(node, references)), before=anchor)
    draft.remove(anchor)


def _views(graph: Graph) -> dict[str, _View]:
    views: dict[str, _View] = {}
    for node in graph:
        if node.op not in (READ, SPLIT) or not in_no_mode(node):
            continue
        source = _source(graph, views, node)
        if source is None:
            continue
        if node.op == READ:
            views[node.outputs[0]] = replace(source, read="var" in node.args[0])
            continue
        dim, sizes = dim_of(node, len(source.sizes), 2), node.args[1]
        for k, size, end in zip(node.outputs, sizes, accumulate(sizes), strict=True):
            offsets, own = list(source.offsets), list(source.sizes)
            offsets[dim], own[dim] = offsets[dim] + end - size, size
            views[k] = _View(source.initializer, tuple(offsets), tuple(own))
    return views


def _source(graph: Graph, views: Mapping[str, _View], node: Node) -> _View | None:
    ((tag, k),) = node.args[0].items()
    if tag != "init":
        return views.get(k)
    shape = graph.initializers[k].shape
    return _View(k, (0,) * len(shape), shape)


def _fall_apart(initializer: Initializer, views: Sequence[_View]) -> bool:
    """Whether they are several regions that make up all of it, none of which overlaps another."""
    boxes = list(dict.fromkeys(view.box for view in views))
    total = sum(prod(sizes) for _, sizes in boxes)
    return (
        len(boxes) > 1
        and total == prod(initializer.shape)
        and not any(_overlap(a, b) for a, b in combinations(boxes, 2))
    )


def _overlap(a: _Box, b: _Box) -> bool:
    return all(max(p, q) < min(p + m, q + n) for p, m, q, n in zip(a[0], a[1], b[0], b[1], strict=True))


def _part(initializer: Initializer, box: _Box, copy: int) -> Initializer:
    offsets, sizes = box
    region = Region(initializer.name, initializer.shape, offsets, copy)
    return replace(initializer, name=region.named(sizes), shape=sizes, region=region)


_Boxes: TypeAlias = dict[_Box, str]


def _put_together(draft: Draft, pieces: _Boxes, like: Node, name: str, after: list[str]) -> str:
    """The variable that pieces make up; they can be halved again and again, as they were cut so."""
    if len(pieces) == 1:
        return next(iter(pieces.values()))
    dim, halves = next(_halves(pieces))
    cut = [_put_together(draft, half, like, f"{name}.{i}", after) for i, half in enumerate(halves)]
    made = draft.fresh(name)
    own = Node(
        made, CAT, (), (made,), args=([{"var": k} for k in cut], dim), module=like.module, source=like.source
    )
    draft.emit(own, after=after[-1])
    after.append(made)
    return made


def _halves(pieces: _Boxes) -> Iterator[tuple[int, list[_Boxes]]]:
    """Dimensions along which all pieces lie on one side or on the other, and these sides."""
    for dim in range(len(next(iter(pieces))[0])):
        for place in sorted({offsets[dim] for offsets, _ in pieces})[1:]:
            first = {box: k for box, k in pieces.items() if box[0][dim] + box[1][dim] <= place}
            second = {box: k for box, k in pieces.items() if box[0][dim] >= place}
            if len(first) + len(second) == len(pieces):
                yield dim, [first, second]
