"""Work that is counted instead of timed: the same on every machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from netsplit.partition import Problem
from tests.partition.builders import large_problem

__all__ = ["growth", "twice"]


def _lines_run(call: Callable[[], object]) -> int:
    """Lines of Python that a call executes, those of its loops as often as they run."""
    lines = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def twice(nodes: int) -> tuple[Problem, Problem]:
    """Two problems on four devices, the second with twice the nodes."""
    return large_problem(nodes, devices=4), large_problem(2 * nodes, devices=4)


def growth(call: Callable[[Problem], object], small: Problem, large: Problem) -> float:
    """How many times the lines that `small` takes `large` takes: of twice, 2 where the work is linear."""
    return _lines_run(lambda: call(large)) / _lines_run(lambda: call(small))
