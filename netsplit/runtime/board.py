"""Where each worker stands, written by the worker and readable by others even when it hangs or is dead.

One small file a rank, mapped into memory: a count of instructions begun since the start, the index
of the current one in its program, and a phase (1: training program, 2: inference program).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Board", "Place", "read_place"]

_LAYOUT = struct.Struct("<QiI")


@dataclass(frozen=True)
class Place:
    """`begun` grows with every instruction; `index` is -1 between iterations."""

    begun: int
    index: int
    phase: int


class Board:
    """The worker's side."""

    def __init__(self, folder: str | Path, rank: int) -> None:
        path = _path(folder, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_LAYOUT.pack(0, -1, 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._begun = 0
        self.phase = 1

    def at(self, index: int) -> None:
        self._begun += 1
        _LAYOUT.pack_into(self._map, 0, self._begun, index, self.phase)


def read_place(folder: str | Path, rank: int) -> Place | None:
    """Where a rank stands; None when its board is on another machine."""
    try:
        return Place(*_LAYOUT.unpack(_path(folder, rank).read_bytes()))
    except (OSError, struct.error):
        return None


def _path(folder: str | Path, rank: int) -> Path:
    return Path(folder) / f"rank{rank}.board"
