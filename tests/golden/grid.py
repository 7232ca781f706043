"""Predicted milliseconds of whole plans (`schedule=auto`) of every model on every cluster of their benchmark.

Limits go by the seconds that the process computes, timers' too, so that other work on the machine changes
little. What is left of noise comes from threads and from the limits themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.whole_plan.clocks import limits_by
from benchmarks.whole_plan.subject import CLUSTERS, MODELS, Subject
from netsplit.errors import CaptureError, NetSplitError
from netsplit.planning.decide import decide_whole
from netsplit.planning.whole.auto_schedule import AutoSchedule

__all__ = ["CLUSTERS", "MODELS", "cell"]

COUNTS = (1, 2, 4, 8, 16, 32)


def cell(model: str, cluster: str, limit_s: float) -> dict[str, Any]:
    """The whole plan that is decided in so many seconds of computing; `ms` is None where none fits."""
    subject = Subject(model, cluster)
    counts = [m for m in COUNTS if subject.batch_size % m == 0 and _takes(subject, m)]
    asked = AutoSchedule(microbatches=counts, time_limit_s=limit_s)
    with _by_process_time():
        try:
            whole = decide_whole(subject.problem, counts, subject.batch_size, asked)
        except NetSplitError as error:
            return {"ms": None, "plan": str(error)}
    return {"ms": 1e3 * whole.iteration_s, "plan": whole.lines[0]}


def _takes(subject: Subject, microbatches: int) -> bool:
    try:
        subject.problem(microbatches)
    except CaptureError:
        return False
    return True


@contextmanager
def _by_process_time() -> Iterator[None]:
    usual = threading.Timer
    threading.Timer = _ProcessTimer  # type: ignore[assignment, misc]
    try:
        with limits_by("process"):
            yield
    finally:
        threading.Timer = usual  # type: ignore[misc]


class _ProcessTimer(threading.Timer):
    """Calls when the process has computed for so long."""

    def run(self) -> None:
        until = time.process_time() + self.interval
        while (left_s := until - time.process_time()) > 0:
            if self.finished.wait(max(left_s / 2, 0.005)):  # two threads may compute at once
                return
        self.function(*self.args, **self.kwargs)
