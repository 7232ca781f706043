"""Tensors of a device in its host's memory, and how many bytes they are."""

from __future__ import annotations

import weakref
from functools import partial

import torch
from torch import Tensor

__all__ = ["HostMemory", "flat"]


class HostMemory:
    """What one device keeps on its host: pinned memory for a CUDA device.

    A CPU worker has tensors of both kinds in one memory; `__contains__` tells them apart, by the storage.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pinned = device.type == "cuda"
        self.now = self.peak = 0  # bytes
        self._sizes: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __contains__(self, tensor: Tensor, /) -> bool:
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._sizes

    def restart(self) -> None:
        """Forget the peak, for that of what comes now."""
        self.peak = self.now

    def empty(self, nbytes: int) -> Tensor:
        """[nbytes] of uint8 here."""
        if self.pinned:
            tensor = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        else:  # from its storage, so that a meter knows it when it first sees it
            storage = torch.UntypedStorage(nbytes)
            self._note(storage)
            return flat(storage)
        self._note(tensor.untyped_storage())
        return tensor

    def like(self, tensor: Tensor) -> Tensor:
        """Of the same dtype, shape and strides; its values are not set."""
        whole = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        here = self.empty(whole.untyped_storage().nbytes())
        return shaped(here, tensor.dtype, 0, tensor.shape, tensor.stride())

    def take(self, tensor: Tensor) -> Tensor:
        """A copy here."""
        return self.like(tensor).copy_(tensor, non_blocking=self.pinned)

    def bring(self, tensor: Tensor) -> Tensor:
        """A copy of one of these on the device."""
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device)
        return copy.copy_(tensor, non_blocking=self.pinned)

    def settle(self) -> None:
        """Wait until what was sent here is here, so that the processor may read it."""
        if self.pinned:
            torch.cuda.current_stream(self.device).synchronize()

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        self._alive[key] = weakref.ref(storage, partial(self._gone, key))
        self._sizes[key] = nbytes
        self.now += nbytes
        self.peak = max(self.peak, self.now)

    def _gone(self, key: int, _: object) -> None:
        del self._alive[key]
        self.now -= self._sizes.pop(key)


def flat(storage: torch.UntypedStorage) -> Tensor:
    """[bytes] of uint8: all of a storage."""
    return shaped(storage, torch.uint8, 0, (storage.nbytes(),), (1,))


def shaped(
    memory: torch.UntypedStorage | Tensor,
    dtype: torch.dtype,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
) -> Tensor:
    """A tensor in the memory of a storage, or of a tensor that has a whole one; `offset` in elements."""
    storage = memory.untyped_storage() if isinstance(memory, Tensor) else memory
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)
