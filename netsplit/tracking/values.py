"""From nested Python values to the flat strings and numbers which MLflow accepts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

__all__ = [
    "LABELS", "as_tags", "as_yaml", "chunks", "dotted_keys", "masked", "parameters", "plain",
    "plain_key", "shortened", "title", "words_of_failure",
]  # fmt: skip

T = TypeVar("T")

_MAX_KEY = 250
_PASSWORD = re.compile(r"(://[^:/\s]*:)(?:(?!://)\S)+@")  # up to the last @: a password can hold others
_WRAPPED = "(raised as a result of"  # SQLAlchemy's line before the driver's own
_FULL = ("disk is full", "No space left on device", "Disk quota exceeded")  # SQLite's words, and the system's
_NOT_IN_A_KEY = re.compile(r"[^\w\-. :/]")


def plain(value: Any) -> Any:
    """A copy made of dict, list, str, int, float, bool and None only; configs are resolved."""
    from omegaconf import OmegaConf

    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a NumPy or torch scalar
        return value.item()
    return value.as_posix() if isinstance(value, Path) else str(value)


def dotted_keys(value: Any, prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted keys; a list of plain values is one value, other lists get indices."""
    return {key: str(item) for key, item in _leaves(plain(value), prefix)}


def as_tags(values: Mapping[str, Any]) -> dict[str, str]:
    """Nested mappings as dotted keys, without None and what is empty."""
    return {key: str(item) for key, item in _leaves(plain(values), "") if item not in (None, "", [], {})}


def as_yaml(value: Any) -> str:
    """The value as YAML, keys in their given order."""
    import yaml

    return str(yaml.safe_dump(plain(value), sort_keys=False, allow_unicode=True, width=100))


def plain_key(key: str) -> str:
    """A name that MLflow accepts for a metric, parameter or tag; ``cpu:0`` stays as it is."""
    return _NOT_IN_A_KEY.sub("_", key)[:_MAX_KEY]


def masked(text: str) -> str:
    """`text` without the passwords of addresses: ``postgresql://me:***@host``."""
    return _PASSWORD.sub(r"\1***@", text)


def words_of_failure(error: Exception) -> str:
    """What MLflow passes on from its database driver, disk or network, in one line without passwords."""
    text = str(error).strip() or type(error).__name__
    if any(words in text for words in _FULL):
        return "the disk is full: make room, or set another tracking.uri (tracking=none records nothing)."
    lines = text.splitlines()
    return masked(next((line for line in lines if not line.startswith(_WRAPPED)), lines[0]))


def shortened(text: str, limit: int) -> str:
    """`text`, or its beginning and an ellipsis: at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def chunks(items: Sequence[T], size: int) -> Iterator[list[T]]:
    """Consecutive pieces of at most `size` items."""
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    nested = isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value)
    if isinstance(value, dict) and (value or not prefix):
        for key, item in value.items():
            yield from _leaves(item, f"{prefix}.{key}" if prefix else key)
    elif nested:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{prefix}.{index}" if prefix else str(index))
    else:
        yield prefix, value


LABELS = ("model", "dataset", "cluster", "partitioner", "schedule", "optimizer", "scheduler")
_TITLE = ("model", "dataset", "cluster", "schedule")
_OWN = ("tracking", "checkpoint", "resume", "profile", "partitioner", "hydra")
_NOISE = ("cluster.name", "cluster.host", "cluster.port", "cluster.timeout_s", "cluster.external")
_SHORTER = {"schedule.microbatches": "microbatches"}
_SEPARATOR = " · "


def parameters(config: Any, labels: Mapping[str, Any] | None, method: str) -> dict[str, str]:
    """Column -> value of a method's run.

    Args:
        config: the nested config.
        labels: what the parts are called: of `LABELS`, those that are known. They win over the config.
        method: whose settings are told, of all that are under ``partitioner``.
    """
    values = plain(config)
    values = values if isinstance(values, dict) else {}
    columns = {key: _kind(values[key]) for key in LABELS if _kind(values.get(key))}
    columns |= {key: str(value) for key, value in (labels or {}).items() if key in LABELS}
    rest = {key: value for key, value in values.items() if key not in _OWN}
    every = values.get("partitioner")
    own = every.get(method) if isinstance(every, dict) else None
    rest |= {"partitioner": own} if isinstance(own, dict) else {}
    columns["partitioner"] = method
    for key, value in _columns(rest, ""):
        if key not in _NOISE:
            columns.setdefault(_SHORTER.get(key, key), value)
    return columns


def title(method: str, labels: Mapping[str, Any] | None = None) -> str:
    """A run's name: the method first, then what all methods of its comparison share."""
    shared = [str(labels[key]) for key in _TITLE if key in labels] if labels else []
    return _SEPARATOR.join([method, *shared])


def _kind(node: Any) -> str:
    """The last part of a node's target, or of the class that the target is given: ``SGD``."""
    if not isinstance(node, dict):
        return ""
    made = next((node[key] for key in ("optimizer", "scheduler") if isinstance(node.get(key), str)), None)
    return str(made or node.get("_target_", "")).rpartition(".")[2]


def _columns(value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if not key.startswith("_"):
                yield from _columns(item, f"{prefix}.{key}" if prefix else key)
    elif isinstance(value, list) and value:
        yield prefix, ", ".join(_in_words(item) for item in value if item is not None)
    elif value is not None and value != []:
        yield prefix, str(value)


def _in_words(item: Any) -> str:
    """One item of a list, such as a device: ``cpu:0 cpu 120MiB``."""
    if isinstance(item, dict):
        return " ".join(
            str(each) for key, each in item.items() if not key.startswith("_") and each is not None
        )
    return str(item)
