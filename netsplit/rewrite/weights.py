"""Parameters of operators in parts: what tasks read of a weight, and in how many copies.

    w ─► [linear]   becomes   w[0:4] ─► [linear:0]        regions that are all of w, and none over another
                              w[4:8] ─► [linear:1]
                    or        w ─► views of w, sent       else
                              w, w~1 ─► [linear:0, :1]    whole copies

A part is an initializer of its own, held where the operator is that reads it; one that several read is a
variable for them, sent from its home. The copies of one parameter are cut alike, or all are whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations

from netsplit.errors import RewriteError
from netsplit.graph.arguments import Reference
from netsplit.graph.ir import Initializer, Node, NodeRole
from netsplit.graph.ir import Region as ParameterRegion
from netsplit.layout.regions import Region, as_boxes, both, elements, length_of, now, overlap, whole_region
from netsplit.rewrite.emitter import READ, Emitter
from netsplit.rewrite.holdings import Holdings, Tensor, TensorPiece, Want
from netsplit.rewrite.tasks import Path, Weights

__all__ = ["WeightReader", "WeightsRead"]


@dataclass(frozen=True)
class WeightReader:
    """What one task reads of a parameter. `uncut`: it is all of an operator."""

    node: str
    region: Region
    weights: Weights
    uncut: bool


class WeightsRead:
    """The weights that the tasks of a graph read while it is lowered.

    Args:
        readers: of every initializer that tasks read.
        direct: initializers that operators without tasks read.
        parts: in which parameters are held already, where the graph may have no others.
    """

    def __init__(
        self,
        emitter: Emitter,
        holdings: Holdings,
        readers: Mapping[str, Sequence[WeightReader]],
        direct: Set[str],
        parts: Sequence[Initializer] = (),
    ) -> None:
        self.emitter, self.holdings = emitter, holdings
        self._held: dict[str, list[Initializer]] = {}
        for part in parts:
            if part.region is not None:
                self._held.setdefault(part.region.whole, []).append(part)
        self._is: dict[tuple[str, int], dict[Region, Initializer]] = {}
        self._alone: set[str] = set()
        self._tensors: dict[tuple[str, int], Tensor] = {}
        self._aliases: dict[Reference, Reference] = {}
        self.gathered: set[str] = set()
        for k in dict.fromkeys([*readers, *(k for k in self._held if k in direct)]):
            self._decide(k, readers.get(k, ()), k in direct)

    def _decide(self, k: str, readers: Sequence[WeightReader], direct: bool) -> None:
        """Which initializers there are of a parameter, in each copy."""
        initializer = self.emitter.captured.initializers[k]
        constant, written = k in self.emitter.captured.constants, self.emitter.is_written(("init", k))
        if written and any(self._copy(k, each) for each in readers):
            raise RewriteError(
                f"'{k}' is written in every step, and copies would diverge: leave its readers on one device."
            )
        copies = sorted({self._copy(k, each) for each in readers} | ({0} if direct else set()))
        full = whole_region(initializer.shape)
        views = [each for each in readers if not each.uncut or each.weights == "home"]
        boxes = {each: as_boxes(each.region) for each in views}
        every = dict.fromkeys(box for own in boxes.values() for box in own)
        whole = direct or constant or written or len(views) < len(readers)
        parts = not whole and _fall_apart(full, every)
        named, held = {_named(initializer, box) for box in every}, self._held.get(k)
        if held is not None and not (parts and named == {part.name for part in held}):
            self.gathered.add(k)
            for part in held:
                self.emitter.add_initializer(part, k)
            self._is[k, 0] = {_region_of(part): part for part in held}
            return
        numbers: Counter[Region] = Counter()
        for copy in copies:
            own = dict.fromkeys(box for each in views if self._copy(k, each) == copy for box in boxes[each])
            if not parts:
                self._is[k, copy] = {full: self._copied(initializer, full, copy if copy != copies[0] else 0)}
                continue
            self._is[k, copy] = {box: self._copied(initializer, box, numbers[box]) for box in own}
            numbers.update(own.keys())
        if parts or (len(copies) > 1 and every.keys() == {full}):
            users = Counter(
                self._is[k, self._copy(k, each)][box].name for each in views for box in boxes[each]
            )
            sent = [(each, box) for each in views if each.weights == "home" for box in boxes[each]]
            sent += [(each, full) for each in readers if each not in boxes]
            shared = {self._is[k, self._copy(k, each)][box].name for each, box in sent}
            shared |= {k} if direct else set()
            self._alone |= {name for name, count in users.items() if count == 1 and name not in shared}

    def _copy(self, k: str, reader: WeightReader) -> int:
        if k in self.emitter.captured.constants or k in self.gathered or reader.weights == "home":
            return 0
        return reader.weights

    def _copied(self, initializer: Initializer, box: Region, copy: int) -> Initializer:
        """A region of it, in this copy; itself, where that is all."""
        region = _parameter_region(initializer, box, copy)
        sizes = tuple(now(length_of(runs)) for runs in box)
        if not copy and sizes == initializer.shape:
            return initializer
        copied = replace(initializer, name=region.named(sizes), shape=sizes, region=region)
        self.emitter.add_initializer(copied, initializer.name)
        return copied

    def read(self, k: str, like: Node, tasks: Sequence[tuple[WeightReader, Path]]) -> list[Reference]:
        """What the tasks of one operator are given as one argument."""
        views = [(reader, place) for reader, place in tasks if not self._at_once(k, reader)]
        if self.emitter.is_written(("init", k)) and any(
            len(runs) > 1 for each, _ in views for runs in each.region
        ):
            raise RewriteError(
                f"'{like.name}' ({like.kind}) writes '{k}', and parts of several blocks would write copies "
                "of it: give blocks=1."
            )
        by_copy, fetched = dict[int, list[Want]](), dict[tuple[int, Want], Reference]()
        for reader, place in views:
            by_copy.setdefault(self._copy(k, reader), []).append((reader.region, place))
        for copy, wants in by_copy.items():
            each_fetched = self.holdings.fetch(self._tensor(k, copy, like), wants, k)
            fetched |= zip([(copy, want) for want in wants], each_fetched, strict=True)
        references: list[Reference] = []
        for reader, place in tasks:
            copy = self._copy(k, reader)
            if self._at_once(k, reader):
                own = self._is[k, copy][reader.region].name
                direct = (reader.uncut and reader.weights != "home") or own in self._alone
                references.append(("init", own) if direct else self._alias(("init", own), like))
                continue
            reference = fetched[copy, (reader.region, place)]
            viewed = reference[0] == "var" and reference not in self._aliases.values()
            sent = viewed and reader.weights == "home"
            references.append(self._alias(reference, like) if sent else reference)
        return references

    def _at_once(self, k: str, reader: WeightReader) -> bool:
        """Whether an initializer is what it reads."""
        return k not in self.gathered and reader.region in self._is[k, self._copy(k, reader)]

    def _tensor(self, k: str, copy: int, like: Node) -> Tensor:
        """The initializers of a parameter as a tensor; parts that several read are variables."""
        tensor = self._tensors.get((k, copy))
        if tensor is None:
            full = whole_region(self.emitter.captured.initializers[k].shape)
            tensor = self._tensors[k, copy] = Tensor(full, like, NodeRole(like.name))
            for box, initializer in self._is[k, copy].items():
                own: Reference = "init", initializer.name
                as_it_is = box == full or initializer.name in self._alone
                tensor.add(TensorPiece(own if as_it_is else self._alias(own, like), box))
        tensor.like, tensor.role = like, NodeRole(like.name)
        return tensor

    def _alias(self, reference: Reference, like: Node) -> Reference:
        """The variable on its home that readers on any device get. Raises `RewriteError`: it is written."""
        tag, k = reference
        if reference not in self._aliases:
            if self.emitter.is_written(reference):
                raise RewriteError(
                    f"'{k}', which '{like.name}' ({like.kind}) uses, is written in every step, so other "
                    "devices cannot read it: leave that operator whole."
                )
            role = NodeRole(like.name, moves=True)
            name = self.emitter.fresh(f"{k}:read")
            self._aliases[reference] = "var", self.emitter.move(name, READ, ({tag: k},), like, role)
        return self._aliases[reference]


def _parameter_region(initializer: Initializer, box: Region, copy: int) -> ParameterRegion:
    return ParameterRegion(initializer.name, initializer.shape, tuple(now(runs[0][0]) for runs in box), copy)


def _named(initializer: Initializer, box: Region) -> str:
    return _parameter_region(initializer, box, 0).named([now(length_of(runs)) for runs in box])


def _region_of(part: Initializer) -> Region:
    assert part.region is not None
    return tuple(
        ((both(at, at), both(at + size, at + size)),)
        for at, size in zip(part.region.offsets, part.shape, strict=True)
    )


def _fall_apart(full: Region, boxes: Collection[Region]) -> bool:
    """Whether these are several regions that make up all of it without overlap."""
    if len(boxes) < 2 or sum(map(elements, boxes)) != elements(full):
        return False
    pairs = combinations(boxes, 2)
    return not any(all(overlap(a, b) for a, b in zip(one, other, strict=True)) for one, other in pairs)
