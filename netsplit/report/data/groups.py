"""Comparisons of one command beside one another: the cases of an experiment, or the jobs of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from netsplit.report.data.results import ComparisonGroup, ComparisonResult, source_of
from netsplit.report.text import NONE, abbreviated, moment

__all__ = ["grouped", "told_apart", "told_apart_in_sweep"]

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


_MOST_TOLD = 3  # parameters that tell a comparison from others of its name
_MOST_SWEPT = 6  # parameters of a sweep's job
_VALUE = 40  # characters of a value
_METHODS = "partitioner"
_OWN = ("tracking.", "checkpoint.", "cases", "published")


def told_apart(comparisons: Sequence[ComparisonResult]) -> list[ComparisonResult]:
    """Comparisons of one name get what differs in their configs as a detail, or else when they began."""
    by_name: dict[str, list[ComparisonResult]] = {}
    for one in comparisons:
        by_name.setdefault(one.name, []).append(one)
    details: dict[str, str] = {}
    for same in by_name.values():
        if len(same) > 1:
            named = _unique(same, [_differences(each, same) for each in same])
            details |= {one.place.run_id: detail for one, detail in zip(same, named, strict=True)}
    return [replace(one, detail=details.get(one.place.run_id, one.detail)) for one in comparisons]


def told_apart_in_sweep(comparisons: Sequence[ComparisonResult]) -> list[ComparisonResult]:
    """Jobs of one sweep get every parameter in which they differ as a detail."""
    every = _with_methods(comparisons)
    keys = [key for key in _common(every) if not key.startswith(_OWN)]
    keys = _independent([key for key in keys if len({each[key] for each in every}) > 1], every)
    telling = _telling(keys, every)
    shown = [*telling, *(key for key in keys if key not in telling)][:_MOST_SWEPT]
    details = [", ".join(f"{key}={abbreviated(each[key], _VALUE)}" for key in shown) for each in every]
    details = _unique(comparisons, details)
    return [replace(one, detail=detail) for one, detail in zip(comparisons, details, strict=True)]


def _with_methods(comparisons: Sequence[ComparisonResult]) -> list[Mapping[str, str]]:
    """The parameters, and what the methods are called."""
    methods = [
        one.tags.get("methods") or ", ".join(method.name for method in one.methods) or NONE
        for one in comparisons
    ]
    return [{**one.params, _METHODS: each} for one, each in zip(comparisons, methods, strict=True)]


def _independent(keys: Sequence[str], every: Sequence[Mapping[str, str]]) -> list[str]:
    """Without what only follows: `schedule._target_` from `schedule`, `dataset.seed` from an equal `seed`."""
    values = {key: tuple(each[key] for each in every) for key in keys}
    kept: list[str] = []
    for key in keys:
        group = key.partition(".")[0]
        follows = group != key and group in values
        if follows and len(set(zip(values[group], values[key], strict=True))) == len(set(values[group])):
            continue
        alike = [other for other in keys if values[other] == values[key]]
        if key == min(alike, key=len):
            kept.append(key)
    return kept


def _differences(one: ComparisonResult, same: Sequence[ComparisonResult]) -> str:
    """`schedule.microbatches=2`: the keys in which the comparisons differ, as `one` has them.

    Methods are not told of, they are seen; nor keys that a config of another version does not have.
    """
    every = [each.params for each in same]
    keys = [key for key in _common(every) if not key.startswith((*_OWN, _METHODS))]
    shown = [f"{key}={one.params[key]}" for key in _telling(keys, every)[:_MOST_TOLD]]
    if len({each.experiment for each in same}) > 1:
        shown.insert(0, one.experiment)
    return ", ".join(shown)


def _common(every: Sequence[Mapping[str, str]]) -> list[str]:
    return [key for key in every[0] if all(key in each for each in every)]


def _telling(keys: Sequence[str], every: Sequence[Mapping[str, str]]) -> list[str]:
    """Only keys that tell more apart than the ones before."""
    telling: list[str] = []
    kinds = 1
    for key in keys:
        more = len({tuple(each[name] for name in [*telling, key]) for each in every})
        if more > kinds:
            telling, kinds = [*telling, key], more
    return telling


def _unique(comparisons: Sequence[ComparisonResult], details: Sequence[str]) -> list[str]:
    """The details; where two are equal or one is empty, also when it began, or else the run's id."""
    answer = []
    for one, detail in zip(comparisons, details, strict=True):
        if details.count(detail) > 1 or not detail:
            begun = f"{one.started:%Y-%m-%d %H:%M:%S}" if one.started else ""
            detail = ", ".join(part for part in (detail, begun) if part)
        answer.append(detail or one.place.short_id)
    return answer
