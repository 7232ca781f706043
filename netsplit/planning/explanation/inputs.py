"""What an explanation reads of a timeline and of a program: explaining a file's plan loads neither room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from netsplit.partition.base import Placement, Problem

__all__ = ["EventLike", "ProgramLike", "TimelineLike", "predicted"]


class EventLike(Protocol):
    """`netsplit.simulate.Event`."""

    @property
    def device(self) -> str: ...
    @property
    def kind(self) -> Any: ...
    @property
    def name(self) -> str: ...
    @property
    def microbatch(self) -> int: ...
    @property
    def start_s(self) -> float: ...
    @property
    def end_s(self) -> float: ...
    @property
    def peer(self) -> str: ...
    @property
    def nbytes(self) -> int: ...


class TimelineLike(Protocol):
    """`netsplit.simulate.Timeline`."""

    @property
    def events(self) -> Sequence[Any]: ...
    @property
    def iteration_s(self) -> float: ...


class ProgramLike(Protocol):
    """`netsplit.program.Program`."""

    @property
    def segments(self) -> Sequence[Any]: ...
    @property
    def instructions(self) -> Mapping[str, Sequence[Any]]: ...


def predicted(problem: Problem, placement: Placement) -> TimelineLike | None:
    """What the problem predicts of a placement; None where it has nothing to predict with."""
    return None if problem.evaluate is None else cast(TimelineLike, problem.evaluate(placement))
