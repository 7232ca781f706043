"""What the readers share: places in a file for error messages, numbers, and the order of nodes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from netsplit.errors import NetSplitError
from netsplit.files import parsed_json
from netsplit.graph.order import topological_order

__all__ = ["FilePlace", "JsonPlaces", "checked_number", "parse_json", "topological"]

_SPACE = " \t\n\r"
LARGEST = 1e14  # bytes or time units; thousands of them, several times, still fit 64-bit integers
_SHOWN = 6  # nodes of a cycle that an error names


class JsonPlaces:
    """Says where an element of a top-level array of a JSON text lies. Reads the text only when asked."""

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where

    def at(self, key: str, index: int) -> FilePlace:
        return FilePlace(self, key, index)

    @cached_property
    def starts(self) -> dict[str, list[int]]:
        return _element_starts(self.text)


@dataclass(frozen=True, eq=False)
class FilePlace:
    """One element; as text ``file, line 7, nodes[3]``, which is worked out only where an error needs it."""

    places: JsonPlaces
    key: str
    index: int

    def __str__(self) -> str:
        starts = self.places.starts.get(self.key, [])
        if self.index >= len(starts):
            return f"{self.places.where}, {self.key}[{self.index}]"
        line = self.places.text.count("\n", 0, starts[self.index]) + 1
        return f"{self.places.where}, line {line}, {self.key}[{self.index}]"


def parse_json(text: str, where: str) -> Any:
    """The value of a JSON text.

    Raises:
        NetSplitError: not JSON; names the line.
    """
    try:
        return parsed_json(text)
    except json.JSONDecodeError as error:
        raise NetSplitError(
            f"{where}, line {error.lineno}, column {error.colno}: not JSON ({error.msg})."
        ) from error
    except ValueError as error:
        raise NetSplitError(f"{where}: not JSON that can be read ({error}).") from error


def checked_number(value: Any, what: str, where: object, most: float = LARGEST) -> float:
    """A finite number from 0 to `most`.

    Raises:
        NetSplitError: anything else; names `where` and `what`.
    """
    number = math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number) or number < 0:
        shown = repr(value) if not isinstance(value, str) else f"'{value}'"
        raise NetSplitError(f"{where}: {what} is {shown}: it must be a finite number of 0 or more.")
    if number > most:
        raise NetSplitError(f"{where}: {what} is {number:g}: more than {most:g} cannot be planned with.")
    return number


def topological(
    names: Sequence[str],
    edges: Sequence[tuple[str, str]],
    places: Mapping[tuple[str, str], object],
    where: str,
    breadth_first: bool = False,
) -> list[str]:
    """The names in a topological order that follows the file's as closely as it can.

    Args:
        edges: (u, v), each once.
        places: where an edge stands, for the error.
        breadth_first: of the names that could come next, the one that could first, not the file's first.

    Raises:
        NetSplitError: a cycle; names its nodes and one of its edges.
    """
    rank = {name: i for i, name in enumerate(names)}
    after: list[list[int]] = [[] for _ in names]
    for u, v in edges:
        after[rank[u]].append(rank[v])
    order = topological_order(after, None if breadth_first else int)
    if len(order) < len(names):
        placed = {names[i] for i in order}
        cycle = _cycle([name for name in names if name not in placed], edges)
        place = places.get((cycle[0], cycle[1 % len(cycle)]), where)
        shown = " -> ".join(cycle[:_SHOWN]) + (" -> ..." if len(cycle) > _SHOWN else f" -> {cycle[0]}")
        raise NetSplitError(f"{place}: the edges form a cycle of {len(cycle)} nodes: {shown}.")
    return [names[i] for i in order]


def _cycle(left: Sequence[str], edges: Sequence[tuple[str, str]]) -> list[str]:
    """One cycle among nodes of which each waits for another of them."""
    inside = set(left)
    before = {v: u for u, v in edges if u in inside and v in inside}
    walk, step_of = [left[0]], {left[0]: 0}
    while (u := before[walk[-1]]) not in step_of:
        step_of[u] = len(walk)
        walk.append(u)
    return walk[step_of[u] :][::-1]


def _element_starts(text: str) -> dict[str, list[int]]:
    """Offsets of the elements of every array that is a value of the top-level object."""
    decoder = json.JSONDecoder()
    offsets: dict[str, list[int]] = {}
    at = _skip(text, 0) + 1
    while text[at := _skip(text, at)] != "}":
        key, at = decoder.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        if text[at] != "[":
            _, at = decoder.raw_decode(text, at)
        else:
            starts = offsets[key] = []
            at = _skip(text, at + 1)
            while text[at] != "]":
                starts.append(at)
                _, at = decoder.raw_decode(text, at)
                at = _skip(text, _skip(text, at, ","), "")
            at += 1
        at = _skip(text, at, ",")
    return offsets


def _skip(text: str, at: int, also: str = "") -> int:
    while text[at] in _SPACE or text[at] in also:
        at += 1
    return at
