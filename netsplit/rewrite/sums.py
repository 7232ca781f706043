"""Partial sums: what several tasks made is added up, in slices where several want it.

    0: a0 b0 ─┐                        a0 + a1 at 0 ─┐
              ├─► (several want it) ──►               ├─► one cat at every reader
    1: a1 b1 ─┘                        b0 + b1 at 1 ─┘

Terms are added along the last axis of their mesh first, which is within a host, then along the one before.
What one place wants is added there; what is small, in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from netsplit.graph.ir import NodeRole, dtype_bytes
from netsplit.layout.regions import Region, cut_evenly, grid, length_of, now, within
from netsplit.rewrite.emitter import Emitter
from netsplit.rewrite.holdings import Holdings, Tensor, TensorPiece
from netsplit.rewrite.tasks import Path

__all__ = ["Adder", "Term"]

_ADD = "aten.add.Tensor"

Term = tuple[Path, TensorPiece]
"""A task's part of a sum, and its place on the mesh: each element is the sum of all terms that have it."""


@dataclass(frozen=True)
class Adder:
    """Adds up the terms of one tensor, whose wants are known."""

    emitter: Emitter
    holdings: Holdings
    tensor: Tensor
    name: str  # what its nodes' names begin with
    dtype: str
    sliced_bytes: int  # see `OperatorTasks`

    def add_up(self, terms: Sequence[Term]) -> None:
        """Make the tensor's pieces from these terms, so that each wanted region consists of pieces."""
        tensor = self.tensor
        regions = dict.fromkeys(region for region, _ in tensor.wants)
        atoms = grid(tensor.full, [*regions, *dict.fromkeys(piece.region for _, piece in terms)])
        views: list[dict[Region, TensorPiece]] = []
        for _, piece in terms:
            own = [box for box in atoms if within(box, piece.region) is not None]
            cut = zip(own, self.holdings.cut(tensor, piece, own), strict=True)
            views.append({box: TensorPiece(each, box, piece.place) for box, each in cut})
        for box in atoms:
            viewed = zip(terms, views, strict=True)
            own_terms = [(path, view[box]) for (path, _), view in viewed if box in view]
            places = dict.fromkeys(at for region, at in tensor.wants if within(box, region) is not None)
            alone = next(iter(places), ()) if len(places) < 2 else None
            for piece in self._sum(own_terms, box, alone or own_terms[0][1].place, alone, True):
                tensor.add(piece)

    def _sum(
        self, terms: Sequence[Term], box: Region, at: Path, alone: Path | None, all_terms: bool
    ) -> list[TensorPiece]:
        """Slices of the sum, each in one place.

        Args:
            at: where it is added, if in one piece.
            alone: the only place that wants it.
            all_terms: of the whole sum, and not of one axis of the mesh.
        """
        if len(terms) == 1:
            return [terms[0][1]]
        inner: dict[int, list[Term]] = {}
        for path, piece in terms:
            inner.setdefault(path[0], []).append((path[1:], piece))
        if len(inner) == 1:
            return self._sum(next(iter(inner.values())), box, at, alone, all_terms)
        parts = []
        for group in inner.values():  # added where all are wanted, if one of them is there
            places = [piece.place for _, piece in group]
            to = alone if alone is not None and alone in places else places[0]
            parts.append(self._sum(group, box, to, alone, False))
        if len({tuple(piece.region for piece in part) for part in parts}) > 1:
            parts = [[self._joined(part, box)] for part in parts]
        pieces_of_sum: list[TensorPiece] = []
        for pieces in zip(*parts, strict=True):
            region = pieces[0].region
            nbytes = prod(now(length_of(runs)) for runs in region) * dtype_bytes(self.dtype)
            if alone is not None or nbytes < len(pieces) * self.sliced_bytes:
                pieces_of_sum.append(self._added(pieces, region, at, all_terms))
                continue
            slices = cut_evenly(region, len(pieces))
            views = [self.holdings.cut(self.tensor, piece, slices) for piece in pieces]
            for i, each in enumerate(slices):
                own = [TensorPiece(view[i], each, p.place) for view, p in zip(views, pieces, strict=True)]
                pieces_of_sum.append(self._added(own, each, pieces[i].place, False))
        return pieces_of_sum

    def _added(
        self, pieces: Sequence[TensorPiece], region: Region, place: Path, all_terms: bool
    ) -> TensorPiece:
        """One after another; under the operator's own name, where that is all of it."""
        role = NodeRole(self.tensor.role.operator, (), 0, place, True)
        total, whole = pieces[0].reference, self.tensor.whole
        for i, piece in enumerate(pieces[1:], 2):
            args = tuple({tag: k} for tag, k in (total, piece.reference))
            all_of_it = all_terms and i == len(pieces) and region == self.tensor.full
            if all_of_it and whole is not None and whole[1] not in self.emitter.layouts:
                variable = self.emitter.move(whole[0], _ADD, args, self.tensor.like, role, [whole[1]])
            else:
                name = self.emitter.fresh(f"{self.name}:add")
                variable = self.emitter.move(name, _ADD, args, self.tensor.like, role)
            total = "var", variable
        return TensorPiece(total, region, place)

    def _joined(self, pieces: Sequence[TensorPiece], box: Region) -> TensorPiece:
        """One piece from slices."""
        if len(pieces) == 1:
            return pieces[0]
        whole = Tensor(box, self.tensor.like, self.tensor.role)
        for piece in pieces:
            whole.add(piece)
        place = pieces[0].place
        return TensorPiece(self.holdings.fetch(whole, [(box, place)], self.name)[0], box, place)
