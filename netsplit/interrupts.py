"""Ctrl-C, or the stop button of a notebook, where it does no harm.

Python raises KeyboardInterrupt between any two instructions of the main thread: in the middle of a message,
or when one worker of two has been asked; and in a destructor or a callback of the collector, where it drops
the exception. Within `interrupts_held` it waits for `let_interrupt`, or the end.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

__all__ = ["interrupts_held", "let_interrupt"]


@dataclass
class _HeldInterrupt:
    """Of the outermost block."""

    handler: Callable[[int, FrameType | None], Any]  # what would have been called, and will be
    came: bool = False
    firm: int = 0  # blocks around this place through which nothing is let

    def note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.came = True

    def let(self) -> None:
        if self.came:
            self.came = False
            self.handler(signal.SIGINT, sys._getframe(1))


_holding: _HeldInterrupt | None = None


@contextmanager
def interrupts_held(firmly: bool = False) -> Iterator[None]:
    """Let an interrupt wait until the end of the block, where it is raised.

    Args:
        firmly: `let_interrupt` within does nothing; for what must be whole and takes no time.
    """
    global _holding
    outer = _holding
    if threading.current_thread() is not threading.main_thread():  # others are never interrupted
        yield
        return
    if outer is None:
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):
            yield
            return
        own = _HeldInterrupt(handler)
        signal.signal(signal.SIGINT, own.note)
        _holding = own
    else:
        own = outer
    own.firm += firmly
    try:
        yield
    finally:
        own.firm -= firmly
        if outer is None:
            _holding = None
            if signal.getsignal(signal.SIGINT) == own.note:  # else it has set another one, by itself
                signal.signal(signal.SIGINT, own.handler)
            own.let()


def let_interrupt() -> None:
    """Raise an interrupt that waits, if there is one: all is in order here."""
    if _holding is None or _holding.firm or threading.current_thread() is not threading.main_thread():
        return
    _holding.let()
