"""Messages between controller and workers, and the place of each worker in its program.

Messages are pickled, except the two that end a worker. A worker's place is readable even when it hangs or is
dead: a small memory-mapped file per rank holds a count of begun instructions, the index of the current one,
the tag of the transfer or sum it waits for, and a phase (1: training, 2: inference program). Workers on other
machines send their place with their signs of life.
"""

from __future__ import annotations

import io
import mmap
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from pickle import PickleBuffer
from types import FunctionType
from typing import Any

import cloudpickle
import torch

from netsplit.cluster.cluster import Device
from netsplit.graph.analyse import memory_order
from netsplit.runtime.transport.neighbours import Neighbours
from netsplit.runtime.transport.process import ProcessTransport

__all__ = [
    "FAILED", "SIGN_OF_LIFE_S", "STOP", "CallWorkers", "Heartbeat", "HeartbeatFile", "Reply", "Setup", "Sign",
    "Worker", "goes_as_bytes", "packed", "read_place",
]  # fmt: skip

STOP = b"stop"  # an orderly end
FAILED = b"failed: "  # followed by the sentence
SIGN_OF_LIFE_S = 0.5
_LAYOUT = struct.Struct("<QiiI")  # of a heartbeat


@dataclass(frozen=True)
class Heartbeat:
    """`begun` grows with every instruction; `index` is -1 between iterations."""

    begun: int
    index: int
    phase: int
    waits: int = -1  # tag of the Send, Recv or Reduce waited for; -1: none known


class HeartbeatFile:
    """The worker's side; without a folder only the worker itself reads it."""

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
        """Note that an instruction begins; -1: the iteration is over."""
        self._begun += 1
        self._index = index
        _LAYOUT.pack_into(self._map, 0, self._begun, index, -1, self.phase)

    def waits(self, tag: int) -> None:
        """Note the tag of the transfer or sum it waits for; -1: none."""
        _LAYOUT.pack_into(self._map, 0, self._begun, self._index, tag, self.phase)

    @property
    def place(self) -> Heartbeat:
        return _heartbeat(self._map[: _LAYOUT.size])


def read_place(folder: str | Path, rank: int) -> Heartbeat | None:
    """Where a rank is; None if its heartbeat file is on another machine."""
    try:
        return _heartbeat(_path(folder, rank).read_bytes())
    except (OSError, struct.error):
        return None


def _heartbeat(data: bytes) -> Heartbeat:
    begun, index, waits, phase = _LAYOUT.unpack(data)
    return Heartbeat(begun, index, phase, waits)


def _path(folder: str | Path, rank: int) -> Path:
    return Path(folder) / f"rank{rank}.heartbeat"


@dataclass(frozen=True)
class Setup:
    devices: tuple[Device, ...]
    timeout_s: float
    folder: str  # of the heartbeats
    host: str  # of the controller, where that folder is
    cross_memory: bool = True  # workers on a host may read one another's memory
    path: tuple[str, ...] = ()  # the controller's `sys.path`, for workers that it starts itself


@dataclass(frozen=True)
class CallWorkers:
    function: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Sign:
    """A sign of life while a call is under way."""

    place: Heartbeat | None


@dataclass(frozen=True)
class Reply:
    value: Any = None
    number: int = 0  # of the message that is answered; 0 is the set-up
    error: str = ""  # one sentence
    known: bool = False  # a NetSplitError, whose sentence is for the user
    waited: bool = False  # another worker failed: this one waited in vain
    trace: str = ""
    place: Heartbeat | None = None  # where it went wrong


def packed(message: object) -> memoryview:
    """A message for `pickle.loads`; tensors as raw bytes, as torch's pickling is slow."""
    buffer = io.BytesIO()
    _MessagePickler(buffer).dump(message)
    return buffer.getbuffer()


class _MessagePickler(cloudpickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) in (FunctionType, type) and _is_ours(value):
            return NotImplemented  # by its name
        if type(value) is torch.Tensor and goes_as_bytes(value):
            flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            data = PickleBuffer(flat.view(torch.uint8).numpy().data)  # comes as a bytearray, not copied
            return _unpacked, (data, value.dtype, tuple(value.shape))
        if (
            isinstance(value, torch.Tensor) and value.is_cuda
        ):  # otherwise every worker opens a context on that GPU
            return _on_host, (
                value.detach().cpu(),
                isinstance(value, torch.nn.Parameter),
                value.requires_grad,
            )
        return super().reducer_override(value)


def _on_host(value: torch.Tensor, parameter: bool, requires_grad: bool) -> torch.Tensor:
    if parameter:
        return torch.nn.Parameter(value, requires_grad)
    return value.requires_grad_(requires_grad)


def _is_ours(value: Any) -> bool:
    """Whether workers can import this function or class of the package by name."""
    module = sys.modules.get(value.__module__) if value.__module__.startswith("netsplit.") else None
    return getattr(module, value.__qualname__, None) is value


def goes_as_bytes(tensor: torch.Tensor) -> bool:
    """Whether a tensor is sent as its own raw bytes, without its storage."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_nested or tensor.is_quantized)
        and tensor.is_contiguous()
        and not memory_order(tensor.shape, tensor.stride())  # one channel may also be channels_last
    )


def _unpacked(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


@dataclass
class Worker:
    """The context of a called function: identity, and `memory` kept between calls."""

    rank: int
    device: Device
    devices: tuple[Device, ...]
    torch_device: torch.device
    timeout_s: float
    heartbeat_file: HeartbeatFile
    neighbours: Neighbours
    memory: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def transport(self) -> ProcessTransport:
        """Transfers to other devices; one per process, as groups are never released."""
        devices = {device.name: torch.device(device.torch_device) for device in self.devices}
        return ProcessTransport(devices, self.device.name, self.timeout_s, self.neighbours)
