"""Work that is counted instead of timed: the same on every machine, however busy."""

from __future__ import annotations

from netsplit.partition import Problem
from tests.partition.builders import large_problem

__all__ = ["growth", "twice"]


def twice(nodes: int) -> tuple[Problem, Problem]:
    """Two problems on four devices, the second with twice the nodes."""
    return large_problem(nodes, devices=4), large_problem(2 * nodes, devices=4)
