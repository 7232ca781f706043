"""Measured peak bytes of a device over a stretch of work."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch._prims_common import is_non_overlapping_and_dense_or_false
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

    On a CPU every operator is watched, backward's too, and a storage counts from its first use until nothing
    holds it; scratch memory inside kernels is not seen. On a GPU the allocator answers for the whole process.
    A meter may be entered again and goes on. It keeps no tensor alive.

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
        if self._watch is None:
            return self._peak
        self._watch.settle()
        return self._watch.peak

    def count(self, tensors: Iterable[Tensor]) -> None:
        """Count these as alive."""
        if self._watch is not None:
            for tensor in tensors:
                self._watch.see(tensor)

    def restart(self) -> None:
        """Forget the peak so far."""
        if self._watch is not None:
            self._watch.settle()
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
        self.unsettled: tuple[weakref.ref[torch.UntypedStorage], int] | None = None  # see `settle`

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.settle()
        result = func(*args, **kwargs)
        for value in tree_iter((args, kwargs)):
            if isinstance(value, Tensor):
                self.see(value)
        before = self.peak
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self.see(value)
        if _sums_gradients(func, args, result):
            key = args[0].untyped_storage()._cdata
            if key in self.alive:
                self.unsettled, self.peak = (self.alive[key], self.now), before
        return result

    def settle(self) -> None:
        """Decide on a sum of gradients: unwatched, autograd adds into the first term if nobody else holds it,
        which shows in that it is gone now."""
        if self.unsettled is not None:
            first, with_both = self.unsettled
            self.unsettled = None
            if first() is not None:
                self.peak = max(self.peak, with_both)

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


def _sums_gradients(func: Any, args: tuple[Any, ...], result: Any) -> bool:
    """Whether an operator may be autograd's own sum of gradients (`can_accumulate_inplace`)."""
    if func is not torch.ops.aten.add.Tensor or torch._C._current_graph_task_id() < 0:
        return False
    first = args[0]
    return (
        not torch.is_grad_enabled()
        and isinstance(first, Tensor)
        and (first.shape, first.dtype) == (result.shape, result.dtype)
        and is_non_overlapping_and_dense_or_false(first)
    )
