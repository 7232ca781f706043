"""A transfer under way, and how it fails."""

from __future__ import annotations

from typing import Protocol

import torch

__all__ = ["Handle", "TransportLost", "TransportTimeout"]


class TransportTimeout(Exception):
    """A transfer was not finished in time."""


class TransportLost(Exception):
    """The other end of a transfer is gone."""


class Handle(Protocol):
    """A transfer under way."""

    def wait(self, timeout_s: float) -> torch.Tensor:
        """The tensor, once it is there; raises `TransportTimeout` or `TransportLost`."""

    def done(self) -> bool:
        """Whether a send that is watched is over."""
