"""What controller and worker say to each other once they have met; pickled, but for the two last words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from netsplit.cluster.cluster import Device
from netsplit.runtime.board import Place

__all__ = ["FAILED", "SIGN_OF_LIFE_S", "STOP", "Call", "Reply", "Setup", "Sign"]

STOP = b"stop"  # an orderly end
FAILED = b"failed: "  # followed by the sentence
SIGN_OF_LIFE_S = 0.5


@dataclass(frozen=True)
class Setup:
    devices: tuple[Device, ...]
    timeout_s: float
    folder: str  # of the boards
    host: str  # of the controller, where that folder is


@dataclass(frozen=True)
class Call:
    """`function(worker, *args)`, to be run on a worker."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Sign:
    """A sign of life while a call is under way."""

    place: Place | None


@dataclass(frozen=True)
class Reply:
    value: Any = None
    error: str = ""  # one sentence
    known: bool = False  # a NetSplitError: the sentence is for the user as it is
    waited: bool = False  # it went wrong elsewhere: this worker waited in vain
    trace: str = ""
