"""Which region of each tensor is in which variable, and how a reader gets another.

    wanted ──► pieces that are there, the reader's own first, then the nearest ──► views beside their makers
                                                                              └──► one cat at the reader

A region that a reader has put together serves all in its place. Places that differ only in the last axis of
their mesh are on one host: what several of them want of another host's travels once, to one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from math import prod
from typing import TypeAlias

from netsplit.graph.arguments import Reference
from netsplit.graph.ir import Node, NodeRole
from netsplit.layout.regions import (
    Region,
    Runs,
    checked_run,
    compared,
    elements,
    length_of,
    now,
    overlap,
    through,
    within,
)
from netsplit.rewrite.emitter import CAT, SPLIT, Emitter
from netsplit.rewrite.tasks import Path

__all__ = ["Holdings", "Tensor", "TensorPiece", "Want"]

_Span: TypeAlias = tuple[int, int]
_Box: TypeAlias = tuple[_Span, ...]

Want: TypeAlias = tuple[Region, Path]
"""What is read, and in which place."""


@dataclass(frozen=True)
class TensorPiece:
    """A variable, or an initializer, that is a region of a tensor."""

    reference: Reference
    region: Region
    place: Path = ()  # where it is made
    joined: bool = False
    """A reader put it together; it is handed on in its own place alone, or where no place is known."""
    relayed: bool = False  # it was brought from another host, for all in its own


@dataclass(eq=False)
class Tensor:
    """A tensor of the captured graph, or an initializer."""

    full: Region
    like: Node
    role: NodeRole
    pieces: list[TensorPiece] = field(default_factory=list)
    whole: tuple[str, str] | None = None  # names of the node and variable that put all of it together first
    wants: list[Want] = field(default_factory=list)  # of those that read it in parts or in several places
    by_region: dict[Region, list[TensorPiece]] = field(default_factory=dict)

    def add(self, piece: TensorPiece, first: bool = False) -> None:
        at = 0 if first else len(self.pieces)
        self.pieces.insert(at, piece)
        self.by_region.setdefault(piece.region, []).insert(at, piece)


@dataclass(frozen=True)
class _BoxSource:
    """A box of what is wanted, and where it lies in a piece."""

    box: _Box
    piece: TensorPiece
    inside: _Box


class Holdings:
    """Which pieces lie where while a graph is lowered; makes nodes that move them."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self._splits: dict[tuple[Reference, int, tuple[int, ...]], list[str]] = {}

    def fetch(self, tensor: Tensor, wants: Sequence[Want], name: str) -> list[Reference]:
        """A variable for each."""
        there: list[Reference | None] = [self._there(tensor, *want) for want in wants]
        left = [i for i, each in enumerate(there) if each is None]
        for i in left:
            self._relay(tensor, *wants[i], name)
        covers = {i: self._cover(tensor, *wants[i]) for i in left}
        views = self._views_of(tensor, [each for cover in covers.values() for each in cover])
        for i in left:
            boxes = [(each.box, views[each.piece.reference, each.inside]) for each in covers[i]]
            there[i] = self._there(tensor, *wants[i]) or self._put_together(tensor, *wants[i], boxes, name)
        return [each for each in there if each is not None]

    def cut(self, tensor: Tensor, piece: TensorPiece, regions: Sequence[Region]) -> list[Reference]:
        """Views of a piece beside its maker."""
        inside = [_local(region, piece.region) for region in regions]
        views = self._views(tensor, piece, inside)
        return [views[box] for box in inside]

    def _there(self, tensor: Tensor, region: Region, place: Path) -> Reference | None:
        """The variable that is this region already, the nearest first."""
        same = [each for each in tensor.by_region.get(region, ()) if _serves(each, place)]
        return min(same, key=lambda each: -_nearness(each.place, place)).reference if same else None

    def _cover(self, tensor: Tensor, region: Region, place: Path, relay: bool = False) -> list[_BoxSource]:
        """The boxes of a region from pieces that are there, the nearest first."""
        left, sources = elements(region), list[_BoxSource]()
        order = [each for each in tensor.pieces if _serves(each, place) and not (relay and each.relayed)]
        order.sort(key=lambda each: (-_nearness(each.place, place), each.joined))
        for piece in order:
            for source in _common(region, piece):
                rest = [source]
                for other in sources:
                    rest = [each for one in rest for each in _without(one, other.box)]
                sources += rest
                left -= sum(prod(compared(b - a) for a, b in each.box) for each in rest)
            if not left:
                return sources if _falls_apart([each.box for each in sources]) else _refined(sources)
        raise AssertionError(f"{tensor.like.name} is not all there")

    def _relay(self, tensor: Tensor, region: Region, place: Path, name: str) -> None:
        """Bring to this host what several of its places want of others."""
        host = place[:-1]
        wanting = [want for want in tensor.wants if len(want[1]) > 1 and want[1][:-1] == host]
        if len(place) < 2 or len({own for _, own in wanting}) < 2:
            return
        places = dict.fromkeys(own for _, own in wanting)
        by_turn: dict[Path, list[TensorPiece]] = {}
        for source in self._cover(tensor, region, place):
            piece = source.piece
            own = tuple(through(runs, (span,)) for runs, span in zip(region, source.box, strict=True))
            if piece.place[:-1] == host or len(piece.place) != len(place):
                continue
            if any(at != place and _overlaps(wanted, own) for wanted, at in wanting):
                to = (*host, piece.place[-1])
                far = replace(piece, region=own)
                by_turn.setdefault(to if to in places else next(iter(places)), []).append(far)
        for to, pieces in by_turn.items():
            there = [each for each in tensor.pieces if each.place == to]
            whole = _bounding([*(each for each in there if not each.joined and not each.relayed), *pieces])
            regions = {whole: None} if whole is not None else dict.fromkeys(each.region for each in pieces)
            relayed = {piece.region for piece in there if piece.relayed}
            for each in (region for region in regions if region not in relayed):
                sources = self._cover(tensor, each, to, relay=True)
                views = self._views_of(tensor, sources)
                boxes = [(source.box, views[source.piece.reference, source.inside]) for source in sources]
                brought = self._assembled(tensor, boxes, f"{name}:relay", to, copied=True)
                tensor.add(TensorPiece(brought, each, to, relayed=True))

    def _views_of(
        self, tensor: Tensor, sources: Sequence[_BoxSource]
    ) -> dict[tuple[Reference, _Box], Reference]:
        boxes_of: dict[Reference, tuple[TensorPiece, dict[_Box, None]]] = {}
        for each in sources:
            boxes_of.setdefault(each.piece.reference, (each.piece, {}))[1][each.inside] = None
        return {
            (reference, box): view
            for reference, (piece, boxes) in boxes_of.items()
            for box, view in self._views(tensor, piece, list(boxes)).items()
        }

    def _views(self, tensor: Tensor, piece: TensorPiece, boxes: Sequence[_Box]) -> dict[_Box, Reference]:
        full = tuple((0, length_of(runs)) for runs in piece.region)
        views = {box: piece.reference for box in boxes if box == full}
        rest = [box for box in dict.fromkeys(boxes) if box != full]
        if rest:
            role = NodeRole(tensor.role.operator, (), 0, piece.place, True)
            views |= self._split(tensor.like, role, piece.reference, full, dict(zip(rest, rest, strict=True)))
        return views

    def _split(
        self, like: Node, role: NodeRole, reference: Reference, full: _Box, boxes: dict[_Box, _Box]
    ) -> dict[_Box, Reference]:
        """Views of a tensor, one dimension after another. `boxes`: as they lie in it, and were asked for."""
        dim = next((d for d, span in enumerate(full) if any(box[d] != span for box in boxes)), None)
        if dim is None:
            return dict.fromkeys(boxes.values(), reference)
        reference_of: dict[_Box, Reference] = {}
        for spans in _apart([box[dim] for box in boxes]):
            ends = sorted({*full[dim], *(end for span in spans for end in span)})
            views = self._split_at(like, role, reference, dim, ends)
            for (low, high), view in zip(pairwise(ends), views, strict=True):
                inner = {
                    (*box[:dim], (0, high - low), *box[dim + 1 :]): asked
                    for box, asked in boxes.items()
                    if box[dim] == (low, high)
                }
                if inner:
                    own = (*full[:dim], (0, high - low), *full[dim + 1 :])
                    reference_of |= self._split(like, role, ("var", view), own, inner)
        return reference_of

    def _split_at(
        self, like: Node, role: NodeRole, reference: Reference, dim: int, ends: Sequence[int]
    ) -> list[str]:
        key = reference, dim, tuple(ends)
        writing = self.emitter.is_written(reference)
        if key in self._splits and not writing:
            return self._splits[key]
        tag, k = reference
        name = self.emitter.fresh(f"{k}:split{dim}")
        sizes = [now(b - a) for a, b in (checked_run(*run) for run in pairwise(ends))]
        outputs = [f"{name}.{i}" for i in range(len(sizes))]
        self.emitter.move(name, SPLIT, ({tag: k}, sizes, dim), like, role, outputs)
        self._splits[key] = outputs
        return outputs

    def _put_together(
        self, tensor: Tensor, region: Region, place: Path, boxes: Sequence[tuple[_Box, Reference]], name: str
    ) -> Reference:
        node, output = name, ""
        if region == tensor.full and tensor.whole is not None and tensor.whole[1] not in self.emitter.layouts:
            node, output = tensor.whole
        whole = self._assembled(tensor, boxes, node, place, output=output)
        written = any(self.emitter.is_written(reference) for _, reference in boxes)
        if not written:
            tensor.add(TensorPiece(whole, region, place, joined=True))
        return whole

    def _assembled(
        self,
        tensor: Tensor,
        boxes: Sequence[tuple[_Box, Reference]],
        name: str,
        place: Path,
        output: str = "",
        copied: bool = False,
    ) -> Reference:
        """`copied`: one box, too, becomes a tensor of its own."""
        if len(boxes) == 1 and not copied:
            return boxes[0][1]
        role = NodeRole(tensor.role.operator, (), 0, place, True)
        references = dict(boxes)
        dim, own = _groups(list(references))
        groups = [[(box, references[box]) for box in group] for group in own]
        inner = [self._assembled(tensor, each, f"{name}.{i}", place) for i, each in enumerate(groups)]
        args = ([{tag: k} for tag, k in inner], dim)
        if output:
            variable = self.emitter.move(name, CAT, args, tensor.like, role, [output])
        else:
            variable = self.emitter.move(self.emitter.fresh(f"{name}:cat"), CAT, args, tensor.like, role)
        return "var", variable


def _serves(piece: TensorPiece, place: Path) -> bool:
    """Whether a reader in this place may take the piece: what was put together serves its own place."""
    return not piece.joined or piece.place == place or not place


def _overlaps(one: Region, other: Region) -> bool:
    return all(overlap(a, b) for a, b in zip(one, other, strict=True))


def _nearness(place: Path, other: Path) -> int:
    """3: the same; 2: of one host; 1: of which no place is known."""
    if place == other:
        return 3
    if not place or not other:
        return 1
    return 2 if place[:-1] == other[:-1] or len(place) != len(other) else 0


def _common(region: Region, piece: TensorPiece) -> list[_BoxSource]:
    """The boxes that a piece has of what is wanted."""
    pairs = [overlap(wanted, held) for wanted, held in zip(region, piece.region, strict=True)]
    boxes, inside = (
        product(*([(each[i], each[i] + each[2]) for each in own] for own in pairs)) for i in (0, 1)
    )
    return [_BoxSource(box, piece, at) for box, at in zip(boxes, inside, strict=True)]


def _without(source: _BoxSource, box: _Box) -> list[_BoxSource]:
    """What is left of it."""
    if any(max(a, c) >= min(b, d) for (a, b), (c, d) in zip(source.box, box, strict=True)):
        return [source]
    left, own = [], source.box
    for d, ((a, b), (c, e)) in enumerate(zip(source.box, box, strict=True)):
        for low, high in ((a, min(b, c)), (max(a, e), b)):
            if low < high:
                left.append(_narrowed(source, (*own[:d], (low, high), *own[d + 1 :])))
        own = (*own[:d], (max(a, c), min(b, e)), *own[d + 1 :])
    return left


def _narrowed(source: _BoxSource, box: _Box) -> _BoxSource:
    inside = tuple(
        (at + low - first, at + high - first)
        for (low, high), (first, _), (at, _) in zip(box, source.box, source.inside, strict=True)
    )
    return _BoxSource(box, source.piece, inside)


def _local(region: Region, held: Region) -> _Box:
    """Where a region lies in a piece, in one run."""
    inside = within(region, held)
    assert inside is not None, "a region that is cut out of a piece lies in it"
    return tuple(run for (run,) in inside)


def _apart(spans: Sequence[_Span]) -> list[list[_Span]]:
    """Groups of which no two overlap."""
    groups: list[list[_Span]] = []
    for low, high in sorted(dict.fromkeys(spans)):
        fitting = (each for each in groups if each[-1][1] <= low)
        if (group := next(fitting, None)) is None:
            groups.append(group := [])
        group.append((low, high))
    return groups


def _groups(boxes: Sequence[_Box]) -> tuple[int, list[list[_Box]]]:
    """A dimension along which the boxes lie in groups, one behind another; one group, if there is none."""
    for dim in range(len(boxes[0])):
        if all(low == high for low, high in (box[dim] for box in boxes)):  # where there is no element at all
            continue
        groups: list[list[_Box]] = []
        end = -1
        for box in sorted(boxes, key=lambda box: box[dim]):
            low, high = box[dim]
            if groups and low < end:
                groups[-1].append(box)
            else:
                groups.append([box])
            end = max(end, high)
        if len(groups) > 1:
            return dim, groups
    return 0, [list(boxes)]


def _falls_apart(boxes: Sequence[_Box]) -> bool:
    """Whether they can be put together one dimension after another."""
    if len(boxes) == 1:
        return True
    groups = _groups(boxes)[1]
    return len(groups) > 1 and all(map(_falls_apart, groups))


def _refined(sources: Sequence[_BoxSource]) -> list[_BoxSource]:
    """Cut wherever one of them begins or ends."""
    for d in range(len(sources[0].box)):
        ends = sorted({end for each in sources for end in each.box[d]})
        sources = [
            _narrowed(each, (*each.box[:d], (low, high), *each.box[d + 1 :]))
            for each in sources
            for low, high in pairwise(ends)
            if each.box[d][0] <= low < high <= each.box[d][1]
        ]
    return list(sources)


def _bounding(pieces: Sequence[TensorPiece]) -> Region | None:
    """The box that the pieces fill; None: they fill none."""
    hull: list[Runs] = []
    for runs in zip(*(piece.region for piece in pieces), strict=True):
        if any(len(each) > 1 for each in runs):
            return None
        hull.append(((min(each[0][0] for each in runs), max(each[0][1] for each in runs)),))
    whole = tuple(hull)
    filled = sum(elements(region) for region in dict.fromkeys(piece.region for piece in pieces))
    return whole if elements(whole) == filled else None
