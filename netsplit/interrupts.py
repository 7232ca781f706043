"""Ctrl-C, or the stop button of a notebook, where it does no harm.

Python raises KeyboardInterrupt between any two instructions of the main thread, in the middle of a message or
in a destructor, which drops it. Within `interrupts_held` it waits for `let_interrupt`, or the end.

Native code keeps the main thread from hearing of Ctrl-C: solvers are run by `interruptible`.

A command ends by SIGTERM and SIGHUP as by Ctrl-C: with one sentence and exit code 130, from its first line.
Its handlers are set only where it is the program, and while it runs, never by an import.

The collector of cycles interrupts, too: `uncollected` lets it rest.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn, TypeVar

__all__ = [
    "EXIT_INTERRUPTED",
    "cp_sat_solver",
    "end_while_loading",
    "interrupted",
    "interruptible",
    "interrupts_held",
    "interrupts_raised",
    "let_interrupt",
    "older_uncollected",
    "uncollected",
]


EXIT_INTERRUPTED = 130
_HEARD_WITHIN_S = 0.05
_PATIENCE_S = 2.0  # for a solver to end; otherwise it runs on alone
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


T = TypeVar("T")


@dataclass
class _HeldInterrupt:
    handler: Callable[[int, FrameType | None], Any]  # the handler to call later
    came: bool = False
    firm: int = 0  # enclosing firm blocks

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
            if signal.getsignal(signal.SIGINT) == own.note:  # unless the block has set another one
                signal.signal(signal.SIGINT, own.handler)
            own.let()


def let_interrupt() -> None:
    """Raise a waiting interrupt, where it does no harm."""
    if _holding is None or _holding.firm or threading.current_thread() is not threading.main_thread():
        return
    _holding.let()


def interruptible(solve: Callable[[], T], stop: Callable[[], object]) -> T:
    """Run `solve()` in a thread while the main one can be interrupted, which calls `stop`."""
    if threading.current_thread() is not threading.main_thread():  # others are never interrupted
        return solve()
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(solve())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    with interrupts_held():
        thread.start()
        try:
            while thread.is_alive():
                let_interrupt()
                thread.join(_HEARD_WITHIN_S)
        except BaseException:
            stop()
            thread.join(_PATIENCE_S)
            raise
    if errors:
        raise errors[0]
    return answers[0]


def cp_sat_solver(time_limit_s: float, seed: int, workers: int) -> Any:
    """An `ortools` `CpSolver` that leaves Ctrl-C to Python; `solve` it by `interruptible`."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.catch_sigint_signal = False
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.random_seed = seed % (1 << 31)
    solver.parameters.num_workers = workers
    return solver


def interrupted(by: str = "") -> str:
    """The message; `by` is empty for Ctrl-C, else the signal's name."""
    return f"interrupted{f' by {by}' if by else ''}: stopped before the end."


def end_while_loading() -> None:
    """End the program at once, while it is still importing."""
    _handle(_end)


@contextmanager
def interrupts_raised() -> Iterator[None]:
    """Raise KeyboardInterrupt for signals, with the signal's name unless it is Ctrl-C."""
    before = _handle(_raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle(handler: signal._HANDLER) -> dict[int, signal._HANDLER]:
    """Set the handlers; returns the earlier ones."""
    if threading.current_thread() is not threading.main_thread():  # others may set no handler
        return {}
    ours = [n for n in _SIGNALS if signal.getsignal(n) not in (signal.SIG_IGN, None)]  # as under nohup
    return {number: signal.signal(number, handler) for number in ours}


def _end(number: int, _: object) -> NoReturn:
    with suppress(OSError):  # the terminal is gone
        os.write(2, f"{interrupted(_name(number))}\n".encode())
    os._exit(EXIT_INTERRUPTED)


def _raise(number: int, _: object) -> NoReturn:
    raise KeyboardInterrupt(*filter(None, [_name(number)]))


def _name(number: int) -> str:
    return "" if number == signal.SIGINT else signal.Signals(number).name


@contextmanager
def uncollected() -> Iterator[None]:
    """Within it the collector of cycles rests, which took a third of verifying large programs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def older_uncollected() -> Iterator[None]:
    """Within it the collector of cycles passes over all that is there already, as what packages loaded."""
    was_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
