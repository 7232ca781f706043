"""Comparisons of one command beside one another: the cases of an experiment, or the jobs of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from netsplit.report.data.differences import told_apart_in_sweep
from netsplit.report.data.results import ComparisonGroup, ComparisonResult, source_of
from netsplit.report.units import moment

__all__ = ["grouped"]

_LAST = datetime.max.replace(tzinfo=UTC)
_SEPARATOR = " · "  # between the parts of a comparison's name


def grouped(comparisons: Sequence[ComparisonResult]) -> list[ComparisonGroup]:
    """Groups where their first comparison stands; what is in them in the order in which it began.

    A case that is there twice, of an experiment that ran twice, is of another group.
    """
    gathered: list[list[ComparisonResult]] = []
    for one in comparisons:
        others = next((each for each in gathered if _beside(one, each)), None)
        if others is None:
            gathered.append([one])
        else:
            others.append(one)
    names = [_title(each) for each in gathered if len(each) > 1]
    return [_group(each, names) for each in gathered]


def _group(gathered: Sequence[ComparisonResult], names: Sequence[str]) -> ComparisonGroup:
    if len(gathered) == 1:
        return ComparisonGroup(gathered[0].title, gathered)
    ordered = sorted(gathered, key=lambda each: each.started or _LAST)
    title = _title(ordered)
    if names.count(title) > 1:
        title = f"{title} ({moment(ordered[0].started)})"
    group = ComparisonGroup(title, ordered)
    return ComparisonGroup(title, told_apart_in_sweep(ordered)) if group.is_sweep else group


def _beside(one: ComparisonResult, others: Sequence[ComparisonResult]) -> bool:
    """Cases of one experiment, or jobs of one sweep, that one command recorded.

    Before runs had a command, an experiment's cases were told by its name alone.
    """
    first = others[0]
    if one.command != first.command or bool(one.case) != bool(first.case):
        return False
    if one.case:
        return _title([one]) == _title([first]) and one.case not in [other.case for other in others]
    return bool(one.command) and one.experiment == first.experiment


def _title(gathered: Sequence[ComparisonResult]) -> str:
    """The experiment of the cases; of a sweep the name, or what its jobs' names have in common."""
    first, *others = (source_of(each.name, each.tags) for each in gathered)
    if all(other == first for other in others):
        return first
    rest = [other.split(_SEPARATOR) for other in others]
    common = [part for part in first.split(_SEPARATOR) if all(part in other for other in rest)]
    return _SEPARATOR.join(common) or f"{first} and others"
