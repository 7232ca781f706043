"""The order of a draft's nodes, in which many are put beside others, without a pass over all for each.

"" ─► a ─► b ─► c        every name has a place: a number between those of its neighbours
    0    8    12   16    where no number is left between them, all get new ones
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

__all__ = ["NodeOrder"]

_APART = 1 << 40  # places of neighbours at first; halved by what is put between them


class NodeOrder:
    """Names, each once. "" stands before the first of all."""

    def __init__(self, names: Iterable[str]) -> None:
        pairs = list(pairwise(["", *names, ""]))
        self._next = dict(pairs)
        self._previous = {b: a for a, b in pairs}
        self._place: dict[str, int] = {}
        self._number()

    def __iter__(self) -> Iterator[str]:
        name = self._next[""]
        while name:
            yield name
            name = self._next[name]

    def __reversed__(self) -> Iterator[str]:
        """One that was given may be removed before the next is asked for."""
        name = self._previous[""]
        while name:
            before = self._previous[name]
            yield name
            name = before

    def place(self, name: str) -> int:
        """A number that grows along the order, until more is put in."""
        return self._place[name]

    def is_next_or_before(self, name: str, after: str) -> bool:
        """Whether a name is not behind the one that follows `after`."""
        following = self._next[after]
        return not following or self._place[name] <= self._place[following]

    def put_after(self, name: str, after: str) -> None:
        """`after`: "" for first of all."""
        following = self._next[after]
        self._next[after] = self._previous[following] = name
        self._next[name], self._previous[name] = following, after
        low = self._place[after]
        high = self._place[following] if following else low + 2 * _APART
        self._place[name] = (low + high) // 2
        if self._place[name] == low:
            self._number()

    def put_before(self, name: str, before: str) -> None:
        self.put_after(name, self._previous[before])

    def rename(self, name: str, other: str) -> None:
        """Put another in the place of one."""
        before = self._previous[name]
        self.remove(name)
        self.put_after(other, before)

    def remove(self, name: str) -> None:
        before, following = self._previous.pop(name), self._next.pop(name)
        self._next[before], self._previous[following] = following, before
        del self._place[name]

    def _number(self) -> None:
        self._place = {"": 0}
        for i, name in enumerate(self, 1):
            self._place[name] = i * _APART
