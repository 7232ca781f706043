"""Solvers that Ctrl-C ends: native code keeps the main thread from hearing of it until it returns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from netsplit.interrupts import interrupts_held, let_interrupt

__all__ = ["cp_sat_solver", "interruptible"]

T = TypeVar("T")

_HEARD_WITHIN_S = 0.05
_PATIENCE_S = 2.0  # for a solver to end; one that does not goes on alone until its limit


def interruptible(solve: Callable[[], T], stop: Callable[[], object]) -> T:
    """`solve()`, in a thread of its own while the main one can be interrupted; that calls `stop`.

    An interrupt is only noted as it comes, and raised by the waiting itself: whatever the main thread is in
    just then, it is not lost.
    """
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
    """An `ortools.sat.python.cp_model.CpSolver`; `solve` it by `interruptible`, with its `stop_search`.

    By itself it takes Ctrl-C from Python: the search ends as if by its limit, the next one ends the process,
    while it runs in a thread the first does, and afterwards Ctrl-C ends no wait: it restores Python's
    handler by C's `signal`.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.catch_sigint_signal = False
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.random_seed = seed % (1 << 31)
    solver.parameters.num_workers = workers
    return solver
