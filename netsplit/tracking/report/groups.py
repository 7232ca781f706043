"""The cases of one experiment, recorded as comparisons of their own, beside one another."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from netsplit.tracking.report.results import ComparisonResult, Group
from netsplit.tracking.report.units import moment

__all__ = ["grouped"]

_LAST = datetime.max.replace(tzinfo=UTC)


def grouped(found: Sequence[ComparisonResult]) -> list[Group]:
    """Groups where their first comparison stands; cases in the order in which they began.

    A case that is there twice, of an experiment that ran twice, is of another group.
    """
    gathered: list[list[ComparisonResult]] = []
    for one in found:
        others = next((each for each in gathered if _beside(one, each)), None)
        if others is None:
            gathered.append([one])
        else:
            others.append(one)
    names = [_source(each[0]) for each in gathered if len(each) > 1]
    return [_group(each, names) for each in gathered]


def _group(gathered: Sequence[ComparisonResult], names: Sequence[str]) -> Group:
    if len(gathered) == 1:
        return Group(gathered[0].title, gathered)
    ordered = sorted(gathered, key=lambda each: each.started or _LAST)
    title = _source(ordered[0])
    if names.count(title) > 1:
        title = f"{title} ({moment(ordered[0].started)})"
    return Group(title, ordered)


def _beside(one: ComparisonResult, others: Sequence[ComparisonResult]) -> bool:
    if not one.case or not others[0].case or _source(one) != _source(others[0]):
        return False
    return one.case not in [other.case for other in others]


def _source(one: ComparisonResult) -> str:
    """The experiment that a case is of, or what its comparisons are called without the case."""
    return one.tags.get("experiment") or one.name.removesuffix(f": {one.case}")
