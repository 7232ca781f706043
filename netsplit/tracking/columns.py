"""What tells the runs of methods apart, short enough for a column each: their parameters and their names.

Of the config these are left out here: where and how a run is recorded, the settings of other methods,
targets, where workers meet, and keys that are null. It is whole in the artifact ``config.yaml`` and in the
comparison's own run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from netsplit.tracking.values import plain

__all__ = ["LABELS", "parameters", "title"]

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
    for key, value in _leaves(rest, ""):
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


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if not key.startswith("_"):
                yield from _leaves(item, f"{prefix}.{key}" if prefix else key)
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
