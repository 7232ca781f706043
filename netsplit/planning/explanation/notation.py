"""Seconds, counts and sets of nodes in a few characters."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = [
    "counted",
    "is_path",
    "listed",
    "microbatches_listed",
    "node_run",
    "percent",
    "seconds",
    "short",
]


def seconds(value: float) -> str:
    """``1.234 s``, ``12.3 ms``, ``4.5 us``: four digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}"
    return f"{1e6 * value:.3g} us" if value else "0 s"


def listed(names: Sequence[str], joined: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return f" {joined} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def is_path(module: str) -> bool:
    """A dotted path of modules, and not a description in words as some graph files have it."""
    return re.fullmatch(r"[\w.]+", module) is not None


def microbatches_listed(counts: Sequence[int], joined: str = "and") -> str:
    """``1, 2 and 4 micro-batches``."""
    return f"{listed([str(m) for m in counts], joined)} micro-batch{'' if list(counts) == [1] else 'es'}"


def counted(number: int, what: str, several: str = "s") -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {what}{'' if number == 1 else several}"


def percent(part: float, whole: float, digits: int = 0) -> str:
    return f"{100 * part / whole:.{digits}f} %" if whole else "-"


def short(name: str, length: int = 32) -> str:
    """A name with its middle left out where it is long."""
    if len(name) <= length:
        return name
    head = (length - 1) // 2
    return f"{name[:head]}…{name[head + 1 - length :]}"


def node_run(nodes: Sequence[str], length: int = 26) -> str:
    """``n0``, ``n0, n1``, or ``n0 .. n9 (10 nodes)``."""
    if len(nodes) <= 2:
        return ", ".join(short(name, length) for name in nodes)
    return f"{short(nodes[0], length)} .. {short(nodes[-1], length)} ({len(nodes)} nodes)"
