"""Measured events of one device, and where in its program it stands.

Only recorded iterations keep spans. On a GPU the host runs ahead, so spans are marked on the computing stream
and read at the end:

    host    ─ begin ─ issue F0 ─ issue F1 ─ … ─ end: wait for the stream, read the marks
    stream  ─ zero ──── F0 ──────── F1 ──── …
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from netsplit.program.instructions import Send
from netsplit.simulate.timeline import Event, EventKind

__all__ = ["TimelineRecorder", "timeline_events"]

_UNRECORDED = nullcontext()


class TimelineRecorder:
    """Times instructions on the machine's monotonic clock, which its processes share.

    Where a send ends the sender does not see: `timeline_events` takes it from the receiver's wait for it.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.at: Callable[[int], object] = _unwatched  # told the index of an instruction that begins
        self.waits: Callable[[int], object] = _unwatched  # told the tag; -1 when the wait is over
        self.recording = False
        self.marks: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []  # of an event, by its index
        self.zero: torch.cuda.Event | None = None  # what `began_s` is on the stream
        self.events: list[Event] = []
        self.began_s = 0.0
        self.ended_s = 0.0

    def begin(self) -> None:
        self.events, self.marks, self.zero = [], [], None
        self.began_s = time.perf_counter()

    def end(self) -> None:
        if self.zero is not None:
            self.marks[-1][2].synchronize()
        for index, start, end in self.marks:
            assert self.zero is not None
            start_s, end_s = (self.began_s + self.zero.elapsed_time(mark) / 1e3 for mark in (start, end))
            self.events[index] = self.events[index]._replace(start_s=start_s, end_s=end_s)
        self.ended_s = time.perf_counter()

    def span(
        self, kind: EventKind, name: str, microbatch: int, torch_device: torch.device
    ) -> AbstractContextManager[None]:
        return self._recorded(kind, name, microbatch, torch_device) if self.recording else _UNRECORDED

    @contextmanager
    def _recorded(
        self, kind: EventKind, name: str, microbatch: int, torch_device: torch.device
    ) -> Iterator[None]:
        start = time.perf_counter()
        mark = self._mark(torch_device)
        yield
        if mark is not None:
            end = torch.cuda.Event(enable_timing=True)
            end.record()
            self.marks.append((len(self.events), mark, end))
        self.events.append(Event(self.device, kind, name, microbatch, start, time.perf_counter()))

    def _mark(self, torch_device: torch.device) -> torch.cuda.Event | None:
        if torch_device.type != "cuda":
            return None
        if self.zero is None:
            torch.cuda.synchronize(torch_device)
            self.began_s = time.perf_counter()
            self.zero = torch.cuda.Event(enable_timing=True)
            self.zero.record()
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def waited(self, start_s: float, what: str, microbatch: int, peer: str) -> None:
        self.events.append(Event(self.device, "wait", what, microbatch, start_s, time.perf_counter(), peer))

    def sending(self, send: Send, nbytes: int) -> None:
        if not self.recording:
            return
        now = time.perf_counter()
        name = f"gradient of {send.source}" if send.gradient else send.source
        event = Event(self.device, "send", name, send.microbatch, now, now, send.peer, nbytes)
        self.events.append(event)


def _unwatched(number: int) -> None:
    """Nobody is told."""


def timeline_events(events: Iterable[Event], zero_s: float) -> tuple[Event, ...]:
    """Events of all devices from `zero_s` on, by start; a send lasts until its receiver has it."""
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
            e = e._replace(end_s=max(end_s, e.start_s))
        merging[n] = e._replace(start_s=e.start_s - zero_s, end_s=e.end_s - zero_s)
    return tuple(sorted(merging, key=lambda e: e.start_s))
