"""Whether tensors have been written, moved or given another `requires_grad`.

A write is counted by torch, but not one through `.data` or NumPy: for these contents are compared, some
megabytes a time in turns, so that a look costs the same whatever the size of the model.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Written"]

LOOK_BYTES = 2**21  # 2 ms
LOOK_PIECES = 256


class _TensorMark(NamedTuple):
    version: int
    address: int
    requires_grad: bool


class _MemorySpan(NamedTuple):
    tensor: Tensor
    start: int
    stop: int
    memory: memoryview | None  # None: it must be copied to be read
    checksum: int

    @property
    def nbytes(self) -> int:
        return (self.stop - self.start) * self.tensor.element_size()

    def is_same(self) -> bool:
        """Read where it was made: a tensor given other memory since shows by its mark."""
        memory = _read(self.tensor, self.start, self.stop) if self.memory is None else self.memory
        return zlib.crc32(memory) == self.checksum


class Written:
    """How tensors stood at one moment.

    Args:
        before: an earlier moment; what had not been written when that was last asked is not read again.
    """

    def __init__(self, tensors: Iterable[Tensor], before: Written | None = None) -> None:
        self._tensors = {id(tensor): tensor for tensor in tensors}
        self._marks = {key: _mark(tensor) for key, tensor in self._tensors.items()}
        self._pieces: dict[int, list[_MemorySpan]] = {}
        self._at: int = 0 if before is None else before._at  # so that each has its turn
        for key, tensor in self._tensors.items():
            kept = (
                before._pieces[key] if before is not None and before._stands(key, self._marks[key]) else None
            )
            self._pieces[key] = list(_pieces(tensor)) if kept is None else kept
        self._differing: set[int] = set()

    def is_same(self) -> bool:
        """Whether no write has been counted, and what is compared this time is the same."""
        counted = [key for key, tensor in self._tensors.items() if _mark(tensor) != self._marks[key]]
        self._differing = {id(piece.tensor) for piece in self._turn() if not piece.is_same()}
        return not counted and not self._differing

    def has(self, tensor: Tensor) -> bool:
        """Whether this tensor, one of those given, had been written when last asked for all."""
        mark, before = _mark(tensor), self._marks[id(tensor)]
        if mark.version != before.version or id(tensor) in self._differing:
            return True
        if mark.address == before.address:
            return False
        return [p.checksum for p in _pieces(tensor)] != [p.checksum for p in self._pieces[id(tensor)]]

    def _stands(self, key: int, mark: _TensorMark) -> bool:
        return self._marks.get(key) == mark and key not in self._differing

    def _turn(self) -> list[_MemorySpan]:
        pieces = [piece for each in self._pieces.values() for piece in each]
        turn: list[_MemorySpan] = []
        size = 0
        while len(turn) < min(LOOK_PIECES, len(pieces)) and size < LOOK_BYTES:
            turn.append(pieces[self._at % len(pieces)])
            size += turn[-1].nbytes
            self._at += 1
        return turn


def _mark(tensor: Tensor) -> _TensorMark:
    version = 0 if tensor.is_inference() else tensor._version  # inference tensors count no writes
    return _TensorMark(version, tensor.data_ptr() if _has_memory(tensor) else 0, tensor.requires_grad)


def _has_memory(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_nested


def _pieces(tensor: Tensor) -> Iterator[_MemorySpan]:
    count = tensor.numel() if _has_memory(tensor) else 0
    step = max(1, LOOK_BYTES // tensor.element_size())
    for start in range(0, count, step):
        stop = min(start + step, count)
        memory = _read(tensor, start, stop)
        in_place = tensor.device.type == "cpu" and tensor.is_contiguous() and not _is_lazy(tensor)
        yield _MemorySpan(tensor, start, stop, memory if in_place else None, zlib.crc32(memory))


def _is_lazy(tensor: Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


def _read(tensor: Tensor, start: int, stop: int) -> memoryview:
    piece = tensor.detach().reshape(-1)[start:stop].resolve_conj().resolve_neg()
    return piece.contiguous().view(torch.uint8).cpu().numpy().data
