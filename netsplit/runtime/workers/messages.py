"""What controller and worker say to each other once they have met; pickled, but for the two last words."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pickle import PickleBuffer
from types import FunctionType
from typing import Any

import cloudpickle
import torch

from netsplit.cluster.cluster import Device
from netsplit.graph.batches.batch import memory_order
from netsplit.runtime.workers.heartbeat import Heartbeat
from netsplit.runtime.workers.modules import ModulesSeen

__all__ = [
    "FAILED", "SIGN_OF_LIFE_S", "STOP", "CallWorkers", "FoundGpu", "Reply", "Setup", "Sign",
    "goes_as_bytes", "packed",
]  # fmt: skip

STOP = b"stop"  # an orderly end
FAILED = b"failed: "  # followed by the sentence
SIGN_OF_LIFE_S = 0.5


@dataclass(frozen=True)
class Setup:
    devices: tuple[Device, ...]
    timeout_s: float
    folder: str  # of the heartbeats
    host: str  # of the controller, where that folder is
    cross_memory: bool = True  # workers of one host read from one another's memory, where they can
    modules: ModulesSeen | None = None  # the controller's, for workers that it starts itself


@dataclass(frozen=True)
class FoundGpu:
    """What a worker answers to the set-up of its GPU."""

    name: str
    place: str  # by which NCCL tells GPUs apart: the host and the GPU's own number
    free_bytes: int  # once this process has its context there


@dataclass(frozen=True)
class CallWorkers:
    """`function(worker, *args)`, to be run on a worker."""

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
    known: bool = False  # a NetSplitError: the sentence is for the user as it is
    waited: bool = False  # it went wrong elsewhere: this worker waited in vain
    trace: str = ""
    place: Heartbeat | None = None  # where it went wrong


def packed(message: object) -> memoryview:
    """A message for `pickle.loads`; tensors as their bytes: torch's way is slow, and not for all dtypes."""
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
        if isinstance(value, torch.Tensor) and value.is_cuda:  # else every worker opens a context on that GPU
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
    """Whether workers find this function or class of the package under its name."""
    module = sys.modules.get(value.__module__) if value.__module__.startswith("netsplit.") else None
    return getattr(module, value.__qualname__, None) is value


def goes_as_bytes(tensor: torch.Tensor) -> bool:
    """Whether it goes as its bytes: its own alone, also where it is a view."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_nested or tensor.is_quantized)
        and tensor.is_contiguous()
        and not memory_order(tensor.shape, tensor.stride())  # one channel can be the last, too
    )


def _unpacked(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)
