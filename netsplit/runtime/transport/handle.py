"""What moves and adds tensors between devices; a transfer under way, and how it fails."""

from __future__ import annotations

from typing import Protocol

import torch

__all__ = ["Handle", "Transport", "TransportLost", "TransportTimeout", "moved"]


class TransportTimeout(Exception):
    """A transfer was not finished in time."""


class TransportLost(Exception):
    """The other end of a transfer is gone."""


class Handle(Protocol):
    """A transfer under way."""

    def wait(self, timeout_s: float) -> torch.Tensor:
        """The tensor, once it is there; raises `TransportTimeout` or `TransportLost`."""

    def done(self) -> bool:
        """Whether a transfer that is watched is over."""


class Transport(Protocol):
    """Operations that return at once. A tag is used once at a time between the same devices."""

    def send(self, tensor: torch.Tensor, peer: str, tag: int, watched: bool) -> Handle:
        """`watched`: somebody will ask whether it is done, before waiting for it."""

    def receive(self, buffer: torch.Tensor, peer: str, tag: int, watched: bool = False) -> Handle:
        """The handle gives the buffer, or a tensor like it; `watched` as for `send`."""

    def proceed(self) -> None:
        """Carry out what others ask for meanwhile and no thread beside does; called between instructions."""

    def reduce(self, tensor: torch.Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        """The handle gives the sum of what all `devices` contributed; the tensor may be overwritten."""

    def gather(self, tensor: torch.Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        """The handle gives [D, n]: the [n] of every device."""

    def scatter(self, tensor: torch.Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        """The handle gives [n]: of the sum of what all contributed, [D, n], this device's row."""


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on this device. A copy to the CPU's memory is over on return: the host may read it."""
    return tensor.to(device, non_blocking=device.type == "cuda")
