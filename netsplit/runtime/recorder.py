"""Measured events of one device, and where in its program it stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from netsplit.program.instructions import Send
from netsplit.simulate.timeline import Event, EventKind

__all__ = ["Recorder"]


class Recorder:
    """Times instructions on the machine's monotonic clock, which its processes share.

    A send lasts from when it is issued until it is over, waiting for the receiver included.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.on_instruction: Callable[[int], None] | None = None
        self.on_wait: Callable[[int], None] | None = None  # told the tag; -1 when the wait is over
        self.detailed = False  # synchronise a GPU around every span: only for a recorded iteration
        self.events: list[Event] = []
        self.began_s = 0.0
        self.ended_s = 0.0
        self._open: dict[int, tuple[Send, int, float]] = {}

    def begin(self) -> None:
        self.events = []
        self._open = {}
        self.began_s = time.perf_counter()

    def end(self) -> None:
        self.ended_s = time.perf_counter()

    def at(self, index: int) -> None:
        if self.on_instruction is not None:
            self.on_instruction(index)

    @contextmanager
    def span(self, kind: EventKind, name: str, microbatch: int, torch_device: torch.device) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self.detailed and torch_device.type == "cuda":
            torch.cuda.synchronize(torch_device)
        self.events.append(Event(self.device, kind, name, microbatch, start, time.perf_counter()))

    @contextmanager
    def wait(self, tag: int, what: str, microbatch: int, peer: str) -> Iterator[None]:
        start = time.perf_counter()
        if self.on_wait is not None:
            self.on_wait(tag)
        yield
        if self.on_wait is not None:
            self.on_wait(-1)
        self.events.append(Event(self.device, "wait", what, microbatch, start, time.perf_counter(), peer))

    def sending(self, send: Send, nbytes: int) -> None:
        self._open[send.tag] = (send, nbytes, time.perf_counter())

    def sent(self, tag: int, ended_s: float | None) -> None:
        """`ended_s` is None where only this moment is known."""
        send, nbytes, start = self._open.pop(tag)
        end = time.perf_counter() if ended_s is None else ended_s
        name = f"gradient of {send.source}" if send.gradient else send.source
        event = Event(self.device, "send", name, send.microbatch, start, end, send.peer, nbytes)
        self.events.append(event)
