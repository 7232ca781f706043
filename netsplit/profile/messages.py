"""What messages between two workers cost their computations, measured while both compute.

both ends:  receive, send, compute ─► wait          small messages: seconds of a Send or a Recv itself
both ends:  receive, send, compute ─► wait          large ones: what copying a byte takes from computing
both ends:  compute                                 in turn, for comparison
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["MessageCosts", "Mover", "message_costs"]

SMALL, LARGE = 64, 2**20  # bytes
COMPUTE_S = 6e-3  # of a computation, in pieces
PIECES = 4  # before each of which a message starts either way; longer than a large one is on its way
WAIT_S = 60.0


class _Moving(Protocol):
    def wait(self, timeout_s: float) -> Tensor: ...


class Mover(Protocol):
    """What moves tensors between devices: the runtime's transport."""

    def send(self, tensor: Tensor, peer: str, tag: int, watched: bool) -> _Moving: ...

    def receive(self, buffer: Tensor, peer: str, tag: int) -> _Moving: ...


@dataclass(frozen=True)
class MessageCosts:
    """`message_s`: seconds of a Send or a Recv; `copy_s_per_byte`: taken from each end that computes."""

    message_s: float
    copy_s_per_byte: float


def message_costs(mover: Mover, peer: str, barrier: Callable[[], None], rounds: int = 25) -> MessageCosts:
    """To be called by two workers at once; both get what they measured themselves.

    Kinds of a round follow one another at once, so that a change of the machine's speed reaches all of
    them; the answers are medians of differences within a round.
    """
    work = _Work()
    small, large = (torch.zeros(n, dtype=torch.uint8) for n in (SMALL, LARGE))
    posting, copying = [], []
    for _ in range(rounds):
        barrier()
        plain_s = _busy(mover, peer, None, work)
        barrier()
        small_s = _busy(mover, peer, small, work)
        barrier()
        large_s = _busy(mover, peer, large, work)
        posting.append((small_s - plain_s) / (2 * PIECES))
        copying.append((large_s - small_s) / (2 * PIECES * LARGE))
    return MessageCosts(*(max(median(found[rounds // 5 :]), 0.0) for found in (posting, copying)))


class _Work:
    """A computation of many small operators, as long as `COMPUTE_S`."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.values = [torch.randn(64, 64, generator=generator) for _ in range(16)]
        self.count = 16
        for _ in range(3):
            self.count = max(int(self.count * COMPUTE_S / self.seconds()), 4)

    def seconds(self, before: Callable[[], object] | None = None) -> float:
        """Wall seconds of the computation, and of `before` before each of its pieces."""
        start = time.perf_counter()
        total = self.values[0]
        for _ in range(PIECES):
            if before is not None:
                before()
            for k in range(self.count // PIECES):
                total = torch.tanh(self.values[k % 16] @ total)
        return time.perf_counter() - start


def _busy(mover: Mover, peer: str, tensor: Tensor | None, work: _Work) -> float:
    """Seconds of a computation that hides messages either way, starting them included; None: without."""
    moving: list[_Moving] = []

    def start() -> None:
        if tensor is not None:
            moving.append(mover.receive(torch.empty_like(tensor), peer, 0))
            moving.append(mover.send(tensor, peer, 0, tensor.nbytes > SMALL))

    work.seconds()  # from the barrier on the caches are cold
    seconds = work.seconds(start)
    for each in moving:
        each.wait(WAIT_S)
    return seconds
