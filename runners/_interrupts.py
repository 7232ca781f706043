"""Ctrl-C, SIGTERM and SIGHUP end a command with one sentence and exit code 130, from its first line on."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NoReturn

__all__ = ["EXIT_INTERRUPTED", "end_while_loading", "interrupted", "raise_interrupts"]

EXIT_INTERRUPTED = 130
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def interrupted(by: str = "") -> str:
    """The sentence; `by` is empty for Ctrl-C, else the signal's name."""
    return f"interrupted{f' by {by}' if by else ''}: stopped before the end."


def end_while_loading() -> None:
    """End at once: nothing has begun, and what raises in the midst of an import may be dropped there."""
    _handle(_end)


def raise_interrupts() -> None:
    """Raise KeyboardInterrupt, with the signal's name but for Ctrl-C: what has begun ends in good order."""
    _handle(_raise)


def _handle(handler: signal._HANDLER) -> None:
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, handler)


def _end(number: int, _: object) -> NoReturn:
    with suppress(OSError):  # the terminal is gone
        os.write(2, f"{interrupted(_name(number))}\n".encode())
    os._exit(EXIT_INTERRUPTED)


def _raise(number: int, _: object) -> NoReturn:
    raise KeyboardInterrupt(*filter(None, [_name(number)]))


def _name(number: int) -> str:
    return "" if number == signal.SIGINT else signal.Signals(number).name
