"""Measured events of one device, and where in its program it stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from netsplit.program.instructions import Send
from netsplit.simulate.timeline import Event, EventKind

__all__ = ["TimelineRecorder", "timeline_events"]


class TimelineRecorder:
    """Times instructions on the machine's monotonic clock, which its processes share.

    Where a send ends the sender does not see: `timeline_events` takes it from the receiver's wait for it.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.on_instruction: Callable[[int], None] | None = None
        self.on_wait: Callable[[int], None] | None = None  # told the tag; -1 when the wait is over
        self.detailed = False  # synchronise a GPU around every span: only for a recorded iteration
        self.events: list[Event] = []
        self.began_s = 0.0
        self.ended_s = 0.0

    def begin(self) -> None:
        self.events = []
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
        now = time.perf_counter()
        name = f"gradient of {send.source}" if send.gradient else send.source
        event = Event(self.device, "send", name, send.microbatch, now, now, send.peer, nbytes)
        self.events.append(event)


def timeline_events(events: Iterable[Event], zero_s: float) -> tuple[Event, ...]:
    """Events of all devices by their start, from `zero_s` on.

    A send lasts until its receiver has it; where that did not wait, until it looked.
    """
    merging = list(events)
    had = {(e.device, e.peer, e.name, e.microbatch): e.end_s for e in merging if e.kind == "wait"}
    for n, e in enumerate(merging):
        if e.kind == "send":
            what = f"the gradient of variable '{e.name.removeprefix('gradient of ')}'"
            if not e.name.startswith("gradient of "):
                what = f"variable '{e.name}'"
            end_s = had.get(
                (e.peer, e.device, f"{what} of micro-batch {e.microbatch}", e.microbatch), e.end_s
            )
            e = replace(e, end_s=max(end_s, e.start_s))
        merging[n] = replace(e, start_s=e.start_s - zero_s, end_s=e.end_s - zero_s)
    return tuple(sorted(merging, key=lambda e: e.start_s))
