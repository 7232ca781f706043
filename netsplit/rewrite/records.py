"""What is done to a graph, in a few names and numbers: ready for JSON, to be done again. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import Any, TypeAlias

from netsplit.errors import RewriteError

__all__ = ["CopyWeights", "ReadWeights", "Rewrite", "Split", "proportioned", "rewrite_from"]


@dataclass(frozen=True)
class Split:
    """`split_operator`: of a node, along an axis, each of its blocks into parts of these sizes."""

    node: str
    axis: int | str
    sizes: tuple[int, ...]
    blocks: int = 1

    def sizes_of(self, block: int, samples: int) -> tuple[int, ...]:
        """The sizes where each block has this size: cut between samples where it has rows of each.

        They may be 0, where there are fewer samples than parts.
        """
        whole = sum(self.sizes)
        if block == whole:
            return self.sizes
        rows, rest = divmod(block, samples)
        unit = rows if rows and not rest else 1
        ends = [Fraction(sum(self.sizes[: i + 1]), whole) for i in range(len(self.sizes))]
        cuts = [0, *(unit * floor(end * (block // unit) + Fraction(1, 2)) for end in ends)]
        return tuple(b - a for a, b in pairwise(cuts))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "split", **asdict(self)}


@dataclass(frozen=True)
class ReadWeights:
    """`read_weights`: of a node."""

    node: str

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "read", **asdict(self)}


@dataclass(frozen=True)
class CopyWeights:
    """`copy_weights`: of a node, which then reads the copies of this number."""

    node: str
    copy: int

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "copy", **asdict(self)}


Rewrite: TypeAlias = Split | ReadWeights | CopyWeights


def proportioned(count: int, parts: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers of about these proportions that add up to `count`, none of them 0; () where it is less
    than the parts. What is left over by rounding down goes where most was lost."""
    if count < len(parts):
        return ()
    exact = [count * part / sum(parts) for part in parts]
    sizes = [max(1, int(each)) for each in exact]

    def lacks(i: int) -> float:
        return exact[i] - sizes[i]

    while sum(sizes) < count:
        sizes[max(range(len(sizes)), key=lacks)] += 1
    while sum(sizes) > count:
        sizes[min((i for i, size in enumerate(sizes) if size > 1), key=lacks)] -= 1
    return tuple(sizes)


def rewrite_from(values: Mapping[str, Any]) -> Rewrite:
    """Of what `to_dict` gave, after JSON.

    Raises:
        RewriteError: it is no rewrite.
    """
    try:
        kind, node = values["kind"], str(values["node"])
        if kind == "read":
            return ReadWeights(node)
        if kind == "copy":
            return CopyWeights(node, int(values["copy"]))
        if kind == "split":
            axis = values["axis"]
            sizes = tuple(int(each) for each in values["sizes"])
            return Split(node, axis if isinstance(axis, int) else str(axis), sizes, int(values["blocks"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RewriteError(f"a rewrite lacks a field, or has a wrong one: {error}.") from error
    raise RewriteError(f"'{kind}' is no kind of rewrite: there are split, read and copy.")
