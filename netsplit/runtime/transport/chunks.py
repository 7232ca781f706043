"""A tensor that goes in chunks, each a message of its own, so that who hands it on need not have all of it.

p ── chunk 0 ──► q ── chunk 0 ──► r
p ── chunk 1 ──► q
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from netsplit.reshard.hops import chunks_of
from netsplit.runtime.transport.handle import Handle

__all__ = ["Chunks", "Ordered", "each_message", "messages_of"]

_LEAST_S = 1e-3  # for gloo 0 is no limit


def messages_of(tensor: Tensor, chunks: int, order: Sequence[int] = ()) -> list[Tensor]:
    """What a tensor goes as: itself, its dimensions in this order, or chunks of that as vectors; views of it,
    where it lies so, else of a copy."""
    tensor = (tensor.permute(*order) if order else tensor).contiguous()
    parts = chunks_of(tensor.numel(), chunks) if chunks > 1 else ()
    if len(parts) < 2:
        return [tensor]
    flat = tensor.view(-1)
    return [flat[part.start : part.stop] for part in parts]


def each_message(handle: Handle) -> list[Handle]:
    """The messages that a transfer consists of."""
    if isinstance(handle, Ordered):
        return each_message(handle.handle)
    return list(handle.handles) if isinstance(handle, Chunks) else [handle]


class Ordered:
    """A tensor under way as `messages_of` has it in one message, and the `Handle` of it as it is."""

    def __init__(self, handle: Handle, order: Sequence[int]) -> None:
        self.handle = handle
        self.places = sorted(range(len(order)), key=order.__getitem__)

    def wait(self, timeout_s: float) -> Tensor:
        return self.handle.wait(timeout_s).permute(self.places)

    def done(self) -> bool:
        return self.handle.done()


class Chunks:
    """The messages of one tensor under way, in their order, and the `Handle` of the whole.

    Args:
        handles: of its messages.
        whole: what they come into, in the order of its messages; of what is sent, anything.
        parts: chunks of it that they come into; none where it is sent.
    """

    def __init__(self, handles: Sequence[Handle], whole: Tensor, parts: Sequence[Tensor] = ()) -> None:
        self.handles = handles
        self.whole = whole
        self.parts = parts
        self.over = 0
        """How many are over, from the first on; as of the last time somebody asked or waited."""

    def wait_for_next(self, timeout_s: float) -> None:
        """Wait until one more is over."""
        came = self.handles[self.over].wait(timeout_s)
        if self.parts and came.data_ptr() != self.parts[self.over].data_ptr():
            self.parts[self.over].copy_(came)
        self.over += 1

    def wait(self, timeout_s: float) -> Tensor:
        deadline = time.monotonic() + timeout_s
        while self.over < len(self.handles):
            self.wait_for_next(max(deadline - time.monotonic(), _LEAST_S))
        return self.whole

    def done(self) -> bool:
        while self.over < len(self.handles) and self.handles[self.over].done():
            self.wait_for_next(_LEAST_S)
        return self.over == len(self.handles)
