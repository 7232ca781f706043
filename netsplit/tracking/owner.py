"""Which process writes a run: what it left open when it was killed, the next one on its machine ends."""

from __future__ import annotations

import os
import platform
from contextlib import suppress

import psutil

__all__ = ["OWNER", "is_gone", "owner_mark"]

OWNER = "controller"
"""Tag of a run: the mark of the process that writes it."""


def owner_mark(pid: int | None = None) -> str:
    """Host and process namespace, process and when it began: no other process ever has the same."""
    process = psutil.Process(pid)
    return f"{_process_space()} {process.pid} {process.create_time():.2f}"


def is_gone(mark: str) -> bool:
    """Whether the process of a mark is known to have ended; of another machine's, nothing is known."""
    space, *process = mark.rsplit(" ", 2)
    if space != _process_space() or len(process) != 2:
        return False
    try:
        running = psutil.Process(int(process[0]))
        return f"{running.create_time():.2f}" != process[1] or running.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _process_space() -> str:
    """Two containers can have one host name."""
    namespace = ""
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{platform.node()} {namespace}"
