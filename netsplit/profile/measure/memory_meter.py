"""Measured peak bytes of a device over a stretch of work."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

__all__ = ["MemoryMeter"]


class Apart(Protocol):
    """Knows tensors that are in another memory."""

    def __contains__(self, tensor: Tensor, /) -> bool: ...


class MemoryMeter:
    """Largest number of bytes of tensors alive at once, while the meter is entered.

        with MemoryMeter(torch_device, share.all_tensors()) as meter:
            executor.run(feeds)
        meter.peak_bytes

    On a CPU every operator is watched, those of backward included (autograd runs them in the calling
    thread). A storage counts from when an operator first makes or reads it until nothing holds it, be
    the meter entered at that moment or not. What a kernel allocates for itself alone is not seen. On a GPU
    the allocator itself is asked, which answers for the whole process.

    A meter may be entered again and goes on: several executors in one process are told apart by
    entering each one's own meter around what it does. It keeps no tensor alive.

    Args:
        device: whose tensors to count.
        base: tensors that are alive already, such as parameters and moments.
        apart: tensors that do not count, as they are in the memory of a CPU worker's host.
    """

    def __init__(self, device: torch.device, base: Iterable[Tensor] = (), apart: Apart | None = None) -> None:
        self.device = device
        self._watch = _Watch(device.type, apart) if device.type == "cpu" else None
        self._peak = self._start = 0
        self.count(base)

    @property
    def peak_bytes(self) -> int:
        return self._watch.peak if self._watch is not None else self._peak

    def count(self, tensors: Iterable[Tensor]) -> None:
        """Take these for alive already."""
        if self._watch is not None:
            for tensor in tensors:
                self._watch.see(tensor)

    def restart(self) -> None:
        """Forget the peak, for that of what comes now."""
        if self._watch is not None:
            self._start = self._watch.peak = self._watch.now
        else:
            self._start = self._peak = torch.cuda.memory_allocated(self.device)

    @property
    def risen_bytes(self) -> int:
        """The peak beyond what was alive at the restart."""
        return self.peak_bytes - self._start

    def __enter__(self) -> Self:
        if self._watch is not None:
            self._watch.__enter__()
        else:
            torch.cuda.reset_peak_memory_stats(self.device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.__exit__(kind, error, trace)
        else:
            self._peak = max(self._peak, torch.cuda.max_memory_allocated(self.device))


class _Watch(TorchDispatchMode):
    def __init__(self, device_type: str, apart: Apart | None) -> None:
        super().__init__()
        self.device_type = device_type
        self.apart = apart
        self.size: dict[int, int] = {}  # storage -> its bytes
        self.alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # here, so that they go with the meter
        self.now = 0
        self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        for value in tree_iter((args, kwargs, result)):
            if isinstance(value, Tensor):
                self.see(value)
        return result

    def see(self, tensor: Tensor) -> None:
        if tensor.device.type != self.device_type or tensor.layout is not torch.strided:
            return
        if self.apart is not None and tensor in self.apart:
            return
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        if key not in self.size:
            self.alive[key] = weakref.ref(storage, partial(self._gone, key))
        self.now += nbytes - self.size.get(key, 0)
        self.size[key] = nbytes
        self.peak = max(self.peak, self.now)

    def _gone(self, key: int, _: Any) -> None:
        self.now -= self.size.pop(key)
        del self.alive[key]
