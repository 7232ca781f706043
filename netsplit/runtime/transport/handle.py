"""Moving and summing tensors between devices, also within a process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

__all__ = [
    "COMPILING_S", "GatheredRows", "Handle", "LocalTransport", "Ordered", "Sum", "Transport",
    "TransportLost", "TransportTimeout", "dense", "moved",
]  # fmt: skip

COMPILING_S = 900.0
"""Time limit of waits in a first iteration, which compiles."""


class TransportTimeout(Exception):
    """A transfer was not finished in time."""


class TransportLost(Exception):
    """The other end of a transfer is gone."""


class Handle(Protocol):
    def wait(self, timeout_s: float) -> Tensor:
        """The tensor, once it is there; raises `TransportTimeout` or `TransportLost`."""

    def done(self) -> bool:
        """Whether a transfer that is watched is over."""


class Transport(Protocol):
    """Operations that return at once. A tag is used once at a time between the same devices."""

    def send(self, tensor: Tensor, peer: str, tag: int, watched: bool) -> Handle:
        """`watched`: the caller asks whether it is done before waiting for it."""

    def receive(self, buffer: Tensor, peer: str, tag: int, watched: bool = False) -> Handle:
        """The handle gives the buffer, or a tensor like it; `watched` as for `send`."""

    def proceed(self) -> None:
        """Serve other processes' transfers where no thread does; called between instructions."""

    def reduce(self, tensor: Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        """The handle gives the sum over all `devices`; the tensor may be overwritten."""

    def gather(self, tensor: Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        """The handle gives [D, n] from every device's [n]."""

    def scatter(self, tensor: Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        """The handle gives this device's row [n] of the sum of all [D, n]."""


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on this device. A copy to the CPU is complete on return."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def dense(tensor: Tensor, order: Sequence[int] = ()) -> Tensor:
    """The tensor as it is sent: contiguous, with its dimensions in this order."""
    return (tensor.permute(*order) if order else tensor).contiguous()


class Ordered:
    """A tensor under way, whose handle gives it in its own layout."""

    def __init__(self, handle: Handle, order: Sequence[int]) -> None:
        self.handle = handle
        self.places = sorted(range(len(order)), key=order.__getitem__)

    def wait(self, timeout_s: float) -> Tensor:
        return self.handle.wait(timeout_s).permute(self.places)

    def done(self) -> bool:
        return self.handle.done()


class LocalTransport:
    """All devices in one process: a send moves the tensor, a receive takes it."""

    def __init__(self, torch_device: dict[str, torch.device]) -> None:
        self.torch_device = torch_device
        self.parcels: dict[int, Tensor] = {}
        self.terms: dict[int, list[Tensor]] = {}

    def send(self, tensor: Tensor, peer: str, tag: int, watched: bool) -> Handle:
        self.parcels[tag] = moved(tensor, self.torch_device[peer])
        return _Parcel(self, None)

    def receive(self, buffer: Tensor, peer: str, tag: int, watched: bool = False) -> Handle:
        return _Parcel(self, tag)

    def proceed(self) -> None:
        """Nothing is left for later."""

    def forget(self) -> None:
        """Drop what an abandoned iteration sent and nobody took."""
        self.parcels.clear()
        self.terms.clear()

    def reduce(self, tensor: Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        return Sum(self._terms(tensor, devices, tag), len(devices), tensor.device)

    def gather(self, tensor: Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        return GatheredRows(self._terms(tensor, devices, tag), len(devices), tensor.device)

    def scatter(self, tensor: Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        terms = self._terms(tensor, devices, tag)
        return Sum(terms, len(devices), tensor.device, row=len(terms) - 1)

    def _terms(self, tensor: Tensor, devices: tuple[str, ...], tag: int) -> list[Tensor]:
        terms = self.terms.get(tag)
        if terms is None or len(terms) == len(devices):  # of an iteration before
            terms = self.terms[tag] = []
        terms.append(tensor)
        return terms


class _Parcel:
    def __init__(self, transport: LocalTransport, tag: int | None) -> None:
        self.transport = transport
        self.tag = tag

    def wait(self, timeout_s: float) -> Tensor:
        if self.tag is None:
            return torch.empty(0)
        return self.transport.parcels.pop(self.tag)

    def done(self) -> bool:
        return self.tag is None or self.tag in self.transport.parcels


@dataclass
class Sum:
    terms: list[Tensor]
    expected: int
    device: torch.device
    row: int | None = None  # of each term; None: all of it

    def wait(self, timeout_s: float) -> Tensor:
        assert self.done(), "a device waits for a sum before all devices have reached it"
        terms = self.terms if self.row is None else [term[self.row] for term in self.terms]
        total = terms[0].to(self.device).clone()
        for term in terms[1:]:
            total += term.to(self.device)
        return total

    def done(self) -> bool:
        return len(self.terms) == self.expected


class GatheredRows(Sum):
    def wait(self, timeout_s: float) -> Tensor:
        assert self.done(), "a device waits for an all-gather before all devices have reached it"
        return torch.stack([term.to(self.device) for term in self.terms])
