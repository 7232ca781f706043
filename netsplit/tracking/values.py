"""Names of tags, and from nested Python values to the flat strings which MLflow keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from netsplit.errors import NetSplitError
from netsplit.files import plain

__all__ = [
    "COMMAND", "COMPARISON", "DECISION", "LABELS", "PICTURES", "TEST", "as_tags", "dotted_keys", "masked",
    "parameters", "plain_key", "sentence_of", "title", "words_of_failure",
]  # fmt: skip

COMPARISON = "comparison"
"""The tag of a method's run with the id of its comparison's run."""
COMMAND = "command"
"""The same of all that one command recorded, as the jobs of a sweep."""
DECISION = "adaptive.decision."
"""``adaptive.decision.<n>``: of a method's run, what was decided about its plan in training, as JSON."""
TEST = "test/"
"""Before the name of the metric that was computed on the test half."""
PICTURES = {
    "comparison": "Throughput and iteration",
    "throughput": "Throughput by iteration",
    "training": "Training",
}
"""Of a comparison: the names of its pictures, and what they show."""
LABELS = ("model", "dataset", "cluster", "partitioner", "schedule", "optimizer", "scheduler")
_TITLE = ("model", "dataset", "cluster", "schedule")
_OWN = ("tracking", "checkpoint", "resume", "profile", "partitioner", "hydra")
_MAX_KEY = 250
_PASSWORD = re.compile(r"(://[^:/\s]*:)(?:(?!://)\S)+@")  # up to the last @: a password can hold others
_WRAPPED = "(raised as a result of"  # SQLAlchemy's line before the driver's own


def dotted_keys(values: Any) -> dict[str, str]:
    """Nested mappings as dotted keys; a list is one value."""
    return {key: str(item) for key, item in _leaves(plain(values), "")}


def as_tags(values: Mapping[str, Any]) -> dict[str, str]:
    """Nested mappings as dotted keys, without None and what is empty."""
    return {key: str(item) for key, item in _leaves(plain(values), "") if item not in (None, "", [], {})}


def plain_key(key: str) -> str:
    """A name that MLflow accepts for a metric, parameter or tag; ``cpu:0`` stays as it is."""
    return re.sub(r"[^\w\-. :/]", "_", key)[:_MAX_KEY]


def masked(text: str) -> str:
    """`text` without the passwords of addresses: ``postgresql://me:***@host``."""
    return _PASSWORD.sub(r"\1***@", text)


def words_of_failure(error: Exception) -> str:
    """What MLflow passes on from its database driver, disk or network, in one line without passwords."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return masked(next((line for line in lines if not line.startswith(_WRAPPED)), lines[0]))


def sentence_of(error: BaseException) -> str:
    """An exception in one line; the type's name only where the message does not stand alone."""
    message = " ".join(str(error).split())
    if isinstance(error, NetSplitError) and message:
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def parameters(config: Any, labels: Mapping[str, Any] | None, method: str) -> dict[str, str]:
    """Column -> value of a method's run.

    Args:
        config: the nested config.
        labels: what the parts are called: of `LABELS`, those that are known. They win over the config.
        method: whose settings are told, of all that are under ``partitioner``.
    """
    values = plain(config) or {}
    every = values.get("partitioner")
    own = every.get(method) if isinstance(every, dict) else None
    rest = {key: value for key, value in values.items() if key not in _OWN} | {"partitioner": own}
    columns = {
        key: str(value) for key, value in _leaves(rest, "") if value not in (None, {}) and "._" not in key
    }
    known = {key: str(value) for key, value in (labels or {}).items() if key in LABELS}
    return {**columns, **known, "partitioner": method}


def title(method: str, labels: Mapping[str, Any]) -> str:
    """A run's name: the method first, then what all methods of its comparison share."""
    return " · ".join([method, *(str(labels[key]) for key in _TITLE if key in labels)])


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values; a list is one value."""
    if isinstance(value, dict) and (value or not prefix):
        for key, item in value.items():
            yield from _leaves(item, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value
