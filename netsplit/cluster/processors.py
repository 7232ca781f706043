"""How many of a host's processors the processes of this job may use together.

affinity   which processors the process may run on       taskset, a batch system
quota      processor seconds a second of its group       a container's limit, in the files of cgroups
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["allowed_processors", "processor_quota", "shared_processors", "usable_processors"]

_ROOT = Path("/")


def usable_processors() -> float:
    """Processors of this process and those it starts; a container's quota need not be a whole number."""
    return shared_processors([(allowed_processors(), processor_quota())])


def shared_processors(of_processes: Iterable[tuple[frozenset[int], float]]) -> float:
    """Processors of several processes of one host together, from what each is allowed and its quota."""
    allowed, quotas = zip(*of_processes, strict=True)
    return float(min(len(frozenset[int]().union(*allowed)), max(quotas)))


def allowed_processors() -> frozenset[int]:
    """Numbers of the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def processor_quota(root: Path = _ROOT) -> float:
    """Processor seconds a second that the groups of this process get; infinite where nothing limits them.

    Args:
        root: of the file system.
    """
    groups = _text(root / "proc/self/cgroup")
    least = math.inf
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        second = not controllers  # version 2 of cgroups has one tree, version 1 one for each controller
        if not second and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("" if second else "cpu")
        group = top / path.lstrip("/")
        # A group has no more than those above it. Seen from within a container its own may be the top.
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            least = min(least, _quota(folder))
    return least


def _quota(group: Path) -> float:
    """Processors that one control group allows."""
    words = _text(group / "cpu.max").split() or [
        _text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
    ]
    try:
        quota, period = map(float, words)
    except ValueError:  # "max", or no such file
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
