"""Whose clock the limits of decisions go by: the wall's, or one of the seconds that this process computes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["CLOCKS", "limits_by"]

CLOCKS = {"wall": time.perf_counter, "process": time.process_time}


@contextmanager
def limits_by(clock: str) -> Iterator[None]:
    """While this lasts, ``time.perf_counter``, which all of them go by, is another clock.

    Solvers outside Python (HiGHS, CP-SAT) keep to the wall's.
    """
    usual = time.perf_counter
    time.perf_counter = CLOCKS[clock]  # type: ignore[assignment]
    try:
        yield
    finally:
        time.perf_counter = usual
