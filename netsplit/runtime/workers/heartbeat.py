"""Where each worker stands, written by the worker and readable by others even when it hangs or is dead.

One small file a rank, mapped into memory: a count of instructions begun since the start, the index
of the current one in its program, the tag of the transfer or sum it waits for, and a phase (1: training
program, 2: inference program). A worker on another machine than the controller has no file there; it
tells its place with its signs of life.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Heartbeat", "HeartbeatFile", "read_place"]

_LAYOUT = struct.Struct("<QiiI")


@dataclass(frozen=True)
class Heartbeat:
    """`begun` grows with every instruction; `index` is -1 between iterations."""

    begun: int
    index: int
    phase: int
    waits: int = -1  # tag of the Send, Recv or Reduce waited for; -1: computing, or it does not say


class HeartbeatFile:
    """The worker's side; without a folder nobody but the worker itself reads it."""

    def __init__(self, folder: str | Path | None, rank: int) -> None:
        nothing = _LAYOUT.pack(0, -1, -1, 0)
        if folder is None:
            self._map = mmap.mmap(-1, _LAYOUT.size)
            self._map[: _LAYOUT.size] = nothing
        else:
            path = _path(folder, rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(nothing)
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._begun = 0
        self._index = -1
        self.phase = 1

    def at(self, index: int) -> None:
        """An instruction begins; -1: the iteration is over."""
        self._begun += 1
        self._index = index
        _LAYOUT.pack_into(self._map, 0, self._begun, index, -1, self.phase)

    def waits(self, tag: int) -> None:
        """It waits for the transfer or sum of this tag; -1: no longer."""
        _LAYOUT.pack_into(self._map, 0, self._begun, self._index, tag, self.phase)

    @property
    def place(self) -> Heartbeat:
        return _unpacked(self._map[: _LAYOUT.size])


def read_place(folder: str | Path, rank: int) -> Heartbeat | None:
    """Where a rank stands; None when its heartbeat_file is on another machine."""
    try:
        return _unpacked(_path(folder, rank).read_bytes())
    except (OSError, struct.error):
        return None


def _unpacked(data: bytes) -> Heartbeat:
    begun, index, waits, phase = _LAYOUT.unpack(data)
    return Heartbeat(begun, index, phase, waits)


def _path(folder: str | Path, rank: int) -> Path:
    return Path(folder) / f"rank{rank}.heartbeat"
