"""From nested Python values to the flat strings which MLflow keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "LABELS", "as_tags", "as_yaml", "dotted_keys", "masked", "parameters", "plain", "plain_key", "title",
    "words_of_failure",
]  # fmt: skip

LABELS = ("model", "dataset", "cluster", "partitioner", "schedule", "optimizer", "scheduler")
_TITLE = ("model", "dataset", "cluster", "schedule")
_OWN = ("tracking", "checkpoint", "resume", "profile", "partitioner", "hydra")
_NOISE = ("cluster.name", "cluster.host", "cluster.port", "cluster.timeout_s", "cluster.external")
_MAX_KEY = 250
_PASSWORD = re.compile(r"(://[^:/\s]*:)(?:(?!://)\S)+@")  # up to the last @: a password can hold others
_WRAPPED = "(raised as a result of"  # SQLAlchemy's line before the driver's own
_FULL = ("disk is full", "No space left on device", "Disk quota exceeded")  # SQLite's words, and the system's


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


def dotted_keys(values: Any) -> dict[str, str]:
    """Nested mappings as dotted keys; a list of plain values is one value, other lists get indices."""
    return {key: str(item) for key, item in _leaves(plain(values), "")}


def as_tags(values: Mapping[str, Any]) -> dict[str, str]:
    """Nested mappings as dotted keys, without None and what is empty."""
    return {key: str(item) for key, item in _leaves(plain(values), "") if item not in (None, "", [], {})}


def as_yaml(values: Any) -> str:
    """The value as YAML, keys in their given order."""
    import yaml

    return str(yaml.safe_dump(plain(values), sort_keys=False, allow_unicode=True, width=100))


def plain_key(key: str) -> str:
    """A name that MLflow accepts for a metric, parameter or tag; ``cpu:0`` stays as it is."""
    return re.sub(r"[^\w\-. :/]", "_", key)[:_MAX_KEY]


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


def parameters(config: Any, labels: Mapping[str, Any] | None, method: str) -> dict[str, str]:
    """Column -> value of a method's run.

    Args:
        config: the nested config.
        labels: what the parts are called: of `LABELS`, those that are known. They win over the config.
        method: whose settings are told, of all that are under ``partitioner``.
    """
    values = plain(config) or {}
    columns = {key: kind for key in LABELS if (kind := _kind(values.get(key)))}
    columns |= {key: str(value) for key, value in (labels or {}).items() if key in LABELS}
    columns["partitioner"] = method
    every = values.get("partitioner")
    own = every.get(method) if isinstance(every, dict) else None
    rest = {key: value for key, value in values.items() if key not in _OWN}
    for key, value in _columns(rest | ({"partitioner": own} if isinstance(own, dict) else {}), ""):
        if key not in _NOISE:
            columns.setdefault("microbatches" if key == "schedule.microbatches" else key, value)
    return columns


def title(method: str, labels: Mapping[str, Any]) -> str:
    """A run's name: the method first, then what all methods of its comparison share."""
    return " · ".join([method, *(str(labels[key]) for key in _TITLE if key in labels)])


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        value = {str(index): item for index, item in enumerate(value)}
    if isinstance(value, dict) and (value or not prefix):
        for key, item in value.items():
            yield from _leaves(item, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value


def _kind(node: Any) -> str:
    """The last part of a node's target, or of the class that the target is given: ``SGD``."""
    if not isinstance(node, dict):
        return ""
    name = next((node[key] for key in ("optimizer", "scheduler") if isinstance(node.get(key), str)), None)
    return str(name or node.get("_target_", "")).rpartition(".")[2]


def _columns(value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """`_leaves` without what is private or missing; a list is one value: ``cpu:0 cpu 120MiB, …``."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not key.startswith("_"):
                yield from _columns(item, f"{prefix}.{key}" if prefix else key)
    elif isinstance(value, list):
        items = (item if isinstance(item, dict) else {"": item} for item in value if item is not None)
        words = (
            " ".join(str(v) for k, v in each.items() if v is not None and k[:1] != "_") for each in items
        )
        if text := ", ".join(words):
            yield prefix, text
    elif value is not None:
        yield prefix, str(value)
