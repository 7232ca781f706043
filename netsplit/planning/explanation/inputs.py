"""What an explanation reads of a timeline and of a program: `partition/` imports neither room."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from netsplit.partition.base import Placement, Problem
from netsplit.partition.common.instance import Instance

__all__ = ["EventLike", "ProgramLike", "SegmentLike", "TimelineLike", "score_of"]


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


class SegmentLike(Protocol):
    """`netsplit.program.Segment`."""

    @property
    def device(self) -> str: ...
    @property
    def nodes(self) -> tuple[str, ...]: ...


class ProgramLike(Protocol):
    """`netsplit.program.Program`."""

    @property
    def segments(self) -> Sequence[Any]: ...
    @property
    def instructions(self) -> Mapping[str, Sequence[Any]]: ...


def score_of(problem: Problem) -> Callable[[Placement], float] | None:
    """The problem's own objective of a placement, in seconds; None where nothing can evaluate it.

    A placement with replicated stages has a period that is not the largest load: see `stage_time`.
    """
    if problem.objective == "max_load":
        instance = Instance.of(problem)
        return lambda placement: float(instance.loads(instance.encode(placement.device_of)).max(initial=0.0))
    evaluate = problem.evaluate
    if evaluate is None:
        return None
    return lambda placement: float(evaluate(placement).iteration_s)
