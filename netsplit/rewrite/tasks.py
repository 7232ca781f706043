"""How an operator is computed in tasks, whatever order that was decided in. Needs no torch.

    OperatorTasks("linear", (TaskCut(1, (6, 6)), TaskCut(0, (4, 4))))      the nodes    linear:0:0  linear:0:1
                                                                                linear:1:0  linear:1:1

A node's `place` is which part it is along each axis of a mesh: one for each cut, then those of the copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import pairwise, product
from math import floor, prod
from typing import Any, Literal, TypeAlias

from netsplit.errors import RewriteError, brief

__all__ = [
    "SLICED_BYTES", "OperatorTasks", "Path", "TaskCut", "Weights", "axis_words", "sizes_in_proportion",
    "tuples_of",
]  # fmt: skip

SLICED_BYTES = 1 << 15
"""Fewest bytes of a slice of a sum: smaller messages cost more than they save."""

Path: TypeAlias = tuple[int, ...]
"""Which part of each cut, outermost first."""

Weights: TypeAlias = int | Literal["home"]
"""The copy of its weights that a task reads, 0 the first; or "home": they are sent from their device."""


@dataclass(frozen=True)
class TaskCut:
    """A cut of each block of an axis into parts of these sizes; `part`: of this part of earlier cuts alone.

    Raises:
        RewriteError: these are no axis, no sizes or no part.
    """

    axis: int | str
    sizes: tuple[int, ...]
    blocks: int = 1
    part: Path | None = None

    def __post_init__(self) -> None:
        axis = isinstance(self.axis, str) or _are_numbers([self.axis])
        numbers = _are_numbers(self.sizes) and _are_numbers([self.blocks], 1)
        if not (axis and numbers and (self.part is None or _are_numbers(self.part))):
            raise RewriteError(
                f"a cut is {brief([self.axis, self.sizes, self.blocks, self.part])}: give an axis, the "
                "sizes of its parts, the number of blocks, and None or the indices of the part to cut."
            )


@dataclass(frozen=True)
class OperatorTasks:
    """How an operator is computed.

    Args:
        node: of the captured graph.
        cuts: outermost first.
        copies: how often each task is computed: along each further axis of the mesh.
        weights: of every task, in order; or one for all.
        sliced_bytes: partial sums that several tasks read are added up in slices, one on each device, if
            these have so many bytes; else on one.
        places: of every task, in order, the same for operators on other meshes; (): on its mesh.

    Raises:
        RewriteError: some of it does not go with the rest.
    """

    node: str
    cuts: tuple[TaskCut, ...] = ()
    copies: tuple[int, ...] = ()
    weights: tuple[Weights, ...] = (0,)
    sliced_bytes: int = SLICED_BYTES
    places: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if not _are_numbers(self.copies, 1):
            raise RewriteError(f"tasks of '{self.node}' have copies={brief(self.copies)}: give 1 or more.")
        numbers = [each for each in self.weights if each != "home"]
        if not _are_numbers(numbers) or len(self.weights) not in (1, len(self.paths)):
            raise RewriteError(
                f"tasks of '{self.node}' have weights={brief(self.weights)}: give the number of a copy of "
                f"its weights, or 'home', for each of {len(self.paths)} tasks, or one for all."
            )
        if self.places and (
            len(self.places) != len(self.paths) * prod(self.copies) or not all(map(_are_numbers, self.places))
        ):
            raise RewriteError(
                f"tasks of '{self.node}' have places={brief(self.places)}: give one for each of "
                f"{len(self.paths) * prod(self.copies)} tasks, or none."
            )

    @property
    def paths(self) -> list[Path]:
        """The paths of all its parts, in order."""
        paths: list[Path] = [()]
        for cut in self.cuts:
            inner = [(i,) for i in range(len(cut.sizes))]
            paths = [own + more for own in paths for more in (inner if cut.part in (None, own) else [()])]
        return paths

    def tasks(self) -> Iterator[tuple[Path, Path, int, Weights]]:
        """Path, place, number of the copy, and weights of every task."""
        places = iter(self.places)
        for path, weights in self._weights_of.items():
            for number, place in enumerate(product(*map(range, self.copies))):
                own = weights if weights == "home" else weights + number
                yield path, next(places, (*path, *place)), number, own

    def named(self, path: Path, copy: int = 0) -> str:
        """The node of a part."""
        return "".join((self.node, *(f":{i}" for i in path), f"~{copy}" if copy else ""))

    def with_cut(self, cut: TaskCut) -> OperatorTasks:
        """Tasks with one more cut, whose parts read the weights that the cut task read."""
        cut_again, known = replace(self, cuts=(*self.cuts, cut), weights=(0,), places=()), self._weights_of
        weights = (known[path if path in known else path[:-1]] for path in cut_again.paths)
        return replace(cut_again, weights=tuple(weights))

    def with_weights(self, path: Path, weights: Weights) -> OperatorTasks:
        """Tasks of which one part reads these."""
        return replace(self, weights=tuple((self._weights_of | {path: weights}).values()))

    @property
    def _weights_of(self) -> dict[Path, Weights]:
        paths = self.paths
        return dict(zip(paths, self.weights * (len(paths) // len(self.weights)), strict=True))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "tasks", **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OperatorTasks:
        """Reads what `to_dict` gave, after JSON. Raises `RewriteError`: it is something else."""
        try:
            own = {k: tuples_of(v) for k, v in values.items() if k not in ("kind", "cuts", "mesh")}
            cuts = tuple(TaskCut(**{k: tuples_of(v) for k, v in each.items()}) for each in values["cuts"])
            return cls(**own, cuts=cuts)
        except (TypeError, KeyError, AttributeError) as error:
            raise RewriteError(f"tasks are {brief(values)}: give what their to_dict() returns.") from error


def _are_numbers(values: Sequence[object], least: int = 0) -> bool:
    return not isinstance(values, str) and all(type(each) is int and each >= least for each in values)


def tuples_of(value: Any) -> Any:
    """What JSON gave, with tuples for its lists."""
    return tuple(map(tuples_of, value)) if isinstance(value, list | tuple) else value


def axis_words(axis: int | str, blocks: int = 1, samples: bool = False) -> str:
    """``dimension 0``, ``dimension 1 of input``, ``the samples``."""
    if samples:
        return "the samples"
    argument, _, place = str(axis).rpartition(".")
    words = str(axis)
    if place.isdecimal():
        words = f"dimension {place} of {argument}" if argument else f"dimension {place}"
    return f"{words}, in {blocks} blocks" if blocks > 1 else words


def sizes_in_proportion(sizes: tuple[int, ...], block: int, samples: int) -> tuple[int, ...]:
    """The sizes scaled to a block of this size, cut between samples where it has rows of each.

    They may be 0, where there are fewer samples than parts.
    """
    whole = sum(sizes)
    if block == whole or min(sizes, default=0) < 1:  # which no part may be
        return sizes
    rows, rest = divmod(block, samples)
    unit = rows if rows and not rest else 1
    ends = [Fraction(sum(sizes[: i + 1]), whole) for i in range(len(sizes))]
    cuts = [0, *(unit * floor(end * (block // unit) + Fraction(1, 2)) for end in ends)]
    return tuple(b - a for a, b in pairwise(cuts))
