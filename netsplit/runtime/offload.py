"""What a device keeps in its host's memory: what autograd saves within a segment, from its forward to its
backward; and the optimiser's state between steps.

    forward:  pack ──► noted;  leave: the operator is over ──► the storage's bytes to the host, once
              settle: the segment is over ──► outputs stay where they are
    backward: unpack ──► the storage comes back, once, and stays until nobody needs it
    step:     of every bucket of parameters: state ──► device, optimizer.step() of these, state ──► host

Parameters, buffers and the segment's inputs and outputs stay on the device. On CUDA the computing stream
copies to and from pinned memory, so no copy overtakes its source.

Autograd packs an operator's arguments before it computes, and some operators write into a saved argument (the
noise of ``rrelu``): copies are made after the operator.

The step is the optimiser's own, on the device, on the same values: what is trained is the same bit for bit,
as long as the optimiser steps on every parameter by itself (`check_buckets`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_map_only

from netsplit.errors import ConfigError, NetSplitError
from netsplit.graph.module import NODE
from netsplit.optim.optimizers import ForModel, buckets_of
from netsplit.profile.measure.optimizer import steps_alike

__all__ = ["HostMemory", "HostMoments", "SavedTensors", "check_buckets", "leaving_between", "saved_leave"]


class HostMemory:
    """One device's memory on its host; pinned for a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pinned = device.type == "cuda"
        self.now = self.peak = 0  # bytes
        self._sizes: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __contains__(self, tensor: Tensor, /) -> bool:
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._sizes

    def restart(self) -> None:
        self.peak = self.now

    def empty(self, nbytes: int) -> Tensor:
        """[nbytes] of uint8 on the host."""
        if self.pinned:
            tensor = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        else:  # from its storage, which a memory meter knows
            storage = torch.UntypedStorage(nbytes)
            self._note(storage)
            return flat(storage)
        self._note(tensor.untyped_storage())
        return tensor

    def like(self, tensor: Tensor) -> Tensor:
        """An uninitialised tensor of the same dtype, shape and strides."""
        whole = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        memory = self.empty(whole.untyped_storage().nbytes())
        return shaped(memory, tensor.dtype, 0, tensor.shape, tensor.stride())

    def take(self, tensor: Tensor) -> Tensor:
        return self.like(tensor).copy_(tensor, non_blocking=self.pinned)

    def bring(self, tensor: Tensor) -> Tensor:
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device)
        return copy.copy_(tensor, non_blocking=self.pinned)

    def settle(self) -> None:
        """Wait until copies to the host are over, so that the processor may read them."""
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
    """A tensor in a storage's memory; `offset` in elements."""
    storage = memory.untyped_storage() if isinstance(memory, Tensor) else memory
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)


_current: SavedTensors | None = None


def saved_leave() -> None:
    """Called after every operator: what it saved may leave the device."""
    if _current is not None:
        _current.leave()


def leaving_between(module: fx.GraphModule) -> None:
    """Insert a call of `saved_leave` after every operator of a segment."""
    for node in list(module.graph.nodes):
        if NODE in node.meta:
            with module.graph.inserting_after(node):
                module.graph.call_function(saved_leave)
    module.recompile()


class _Staying(NamedTuple):
    tensor: Tensor  # beside autograd
    version: int


class _Departed:
    """A storage's bytes, on the host or back on the device."""

    def __init__(self, tensor: Tensor, host: HostMemory) -> None:
        self.host, self.version = host, tensor._version
        self.stays = False
        self.tensor: Tensor | None = tensor
        self.away: Tensor | None = None

    def leave(self) -> None:
        assert self.tensor is not None
        self.version = self.tensor._version
        storage = self.tensor.untyped_storage()
        self.away = self.host.empty(storage.nbytes())
        self.away.copy_(flat(storage), non_blocking=self.host.pinned)
        self.tensor = None

    def stay(self, tensor: Tensor) -> None:
        self.tensor, self.away, self.stays = tensor, None, True

    def back(self) -> Tensor:
        if self.tensor is None:
            assert self.away is not None
            self.tensor, self.away = self.host.bring(self.away), None
        if self.stays:
            _check_version(self.tensor, self.version)
        return self.tensor


class _SavedView(NamedTuple):
    moved: _Departed
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class SavedTensors:
    """Tensors saved by one forward of one segment; storages of `staying` are not moved."""

    def __init__(self, host: HostMemory, staying: Iterable[Tensor]) -> None:
        self.host = host
        self.staying = {
            StorageWeakRef(each.untyped_storage()) for each in staying if each.layout is torch.strided
        }
        self.moved: dict[StorageWeakRef, _Departed] = {}
        self.leaving: list[_Departed] = []

    @contextmanager
    def hooks(self) -> Iterator[None]:
        global _current
        _current = self
        try:
            with saved_tensors_hooks(self._pack, _unpack):
                yield
        except RuntimeError as error:
            if "saved tensor hooks" not in str(error):
                raise
            raise NetSplitError(
                "offload needs autograd's saved-tensor hooks, which the model's torch.func transforms do "
                "not support: give offload=optimizer or none"
            ) from error
        finally:
            _current = None

    def leave(self) -> None:
        with torch.no_grad():
            for moved in self.leaving:
                moved.leave()
        self.leaving = []

    def settle(self, outputs: Iterable[Tensor]) -> None:
        """End the forward; its results stay on the device until its backward."""
        self.leave()
        for output in outputs:
            if output.layout is not torch.strided:
                continue
            moved = self.moved.get(StorageWeakRef(output.untyped_storage()))
            if moved is not None and moved.version == output._version:
                moved.stay(output.detach())
        self.moved.clear()

    def _pack(self, tensor: Tensor) -> Any:
        if is_functorch_wrapped_tensor(tensor):  # inside a torch.func transform: no storage
            return tensor
        if not self._moves(tensor):
            return _Staying(tensor.detach(), tensor._version)
        with torch.no_grad():
            storage = tensor.untyped_storage()
            key = StorageWeakRef(storage)
            if key in self.staying:
                return _Staying(tensor.detach(), tensor._version)
            moved = self.moved.get(key)
            if moved is None or moved.version != tensor._version:
                moved = self.moved[key] = _Departed(tensor.detach(), self.host)
                self.leaving.append(moved)
            offset = tensor.storage_offset()
            return _SavedView(moved, tensor.dtype, int(offset), tuple(tensor.shape), tensor.stride())

    def _moves(self, tensor: Tensor) -> bool:
        plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
        on_device = plain and tensor.device.type == self.host.device.type
        # Zero tensors of forward-mode derivatives have no memory.
        return on_device and not (tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor())


def _unpack(saved: Tensor | _Staying | _SavedView) -> Tensor:
    if isinstance(saved, Tensor):
        return saved
    if isinstance(saved, _SavedView):
        with torch.no_grad():
            return shaped(saved.moved.back(), saved.dtype, saved.offset, saved.size, saved.stride)
    _check_version(saved.tensor, saved.version)
    return saved.tensor


def _check_version(tensor: Tensor, version: int) -> None:
    """Raises RuntimeError, as autograd does, where a saved tensor was written meanwhile."""
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation"
        )


_PARTS = ("params", "param_names")  # per-parameter entries of an optimiser's group


class HostMoments:
    """An optimiser whose state is on the host except during steps; existing state moves at once."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
        host: HostMemory,
        buckets: Sequence[Sequence[Tensor]] | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.host = host
        self.parameters = parameters
        self.buckets = buckets_of(parameters.values()) if buckets is None else buckets
        self.settle()

    def settle(self) -> None:
        """Move all state to the host, e.g. after a checkpoint was read."""
        for parameter in list(self.optimizer.state):
            self._send(parameter)
        self.host.settle()

    def step(self) -> None:
        for bucket in self.buckets:
            with self._alone(bucket):
                for parameter in bucket:
                    self._move(
                        parameter, lambda value: self.host.bring(value) if value in self.host else value
                    )
                try:
                    self.optimizer.step()
                finally:
                    for parameter in bucket:
                        self._send(parameter)
        self.host.settle()

    def by_bucket(self, values: dict[str, Tensor], change: Callable[[Sequence[str]], None]) -> None:
        """Call `change` for every bucket's names while their `values` are on the device."""
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        for bucket in self.buckets:
            keys = [names[id(parameter)] for parameter in bucket]
            on_host = {k: values[k] for k in keys}
            values |= {k: self.host.bring(tensor) for k, tensor in on_host.items()}
            change(keys)
            for k, tensor in on_host.items():
                values[k] = tensor.copy_(values[k], non_blocking=self.host.pinned)
        self.host.settle()

    @contextmanager
    def _alone(self, bucket: Sequence[Tensor]) -> Iterator[None]:
        groups = self.optimizer.param_groups
        whole = [{key: group[key] for key in _PARTS if key in group} for group in groups]
        own = {id(parameter) for parameter in bucket}
        for group, parts in zip(groups, whole, strict=True):
            kept = [index for index, each in enumerate(parts["params"]) if id(each) in own]
            group.update({key: [each[index] for index in kept] for key, each in parts.items()})
        try:
            yield
        finally:
            for group, parts in zip(groups, whole, strict=True):
                group.update(parts)

    def _send(self, parameter: Tensor) -> None:
        """Single numbers, such as Adam's step counter, stay where the optimiser wants them."""
        host = self.host
        self._move(parameter, lambda value: host.take(value) if value.dim() and value not in host else value)

    def _move(self, parameter: Tensor, moved: Callable[[Tensor], Tensor]) -> None:
        state = self.optimizer.state
        if parameter in state:
            state[parameter] = tree_map_only(Tensor, moved, state[parameter])


def check_buckets(factory: ForModel) -> None:
    """Raises ConfigError if the optimiser gives other results when it steps by bucket."""

    def in_buckets(
        optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
    ) -> Callable[[], None]:
        host = HostMemory(torch.device("cpu"))
        return HostMoments(optimizer, parameters, host, [[each] for each in parameters.values()]).step

    if not steps_alike(factory, in_buckets):
        raise ConfigError(
            "offload steps parameters in groups, and this optimizer's results would change: it counts its "
            "steps or keeps tensors outside self.state[parameter]. Leave offload out, or use an optimizer "
            "such as torch.optim.AdamW."
        )
