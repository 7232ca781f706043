"""What tells comparisons of one name, or of one sweep, from one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from netsplit.report.data.results import ComparisonResult
from netsplit.report.text import abbreviated
from netsplit.report.units import NONE

__all__ = ["told_apart", "told_apart_in_sweep"]

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
