"""Which process writes a run, and whether it still lives: a killed one leaves its runs RUNNING for ever."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

__all__ = ["is_gone", "owner_mark"]


def owner_mark(pid: int | None = None) -> str:
    """Host, boot and process namespace, process and when it began: no other process ever has the same."""
    process = psutil.Process(pid)
    return f"{_here()} {process.pid} {process.create_time():.2f}"


def is_gone(mark: str) -> bool:
    """Whether the process of a mark is known to have ended; of another machine's, nothing is known."""
    here, *process = mark.rsplit(" ", 2)
    if here != _here() or len(process) != 2:
        return False
    try:
        running = psutil.Process(int(process[0]))
        return f"{running.create_time():.2f}" != process[1] or running.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _here() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot, namespace = f"{psutil.boot_time():.0f}", "-"
    return f"{platform.node()} {boot} {namespace}"
