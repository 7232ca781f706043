"""What a result depends on besides its configuration: commit, versions, machine. All values are tags."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

import netsplit
from netsplit.cluster.nvml import found_gpus
from netsplit.cluster.processors import usable_processors
from netsplit.errors import ConfigError

__all__ = ["gpu_names", "host_tags"]

_PACKAGES = {
    "netsplit": "netsplit",
    "torch": "torch",
    "torchvision": "torchvision",
    "mlflow": "mlflow",
    "gurobi": "gurobipy",
    "highs": "highspy",
    "ortools": "ortools",
    "scip": "PySCIPOpt",
}


def host_tags() -> dict[str, str]:
    """Tags ``git.*``, ``version.*`` and ``host.*``; a fact that cannot be found is left out."""
    return dict(_host_tags())


@cache
def _host_tags() -> dict[str, str]:
    return _git() | _versions() | _machine()


def _git() -> dict[str, str]:
    folder = Path(netsplit.__file__).parent
    commit = _run("git", "-C", str(folder), "rev-parse", "HEAD")
    if not commit:
        return {}
    dirty = bool(_run("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"))
    branch = _run("git", "-C", str(folder), "rev-parse", "--abbrev-ref", "HEAD") or ""
    return {
        "git.commit": commit,
        "git.dirty": str(dirty).lower(),
        "git.branch": branch,
        "mlflow.source.git.commit": commit,  # the key which the MLflow UI shows as the run's version
    }


def _versions() -> dict[str, str]:
    versions = {"version.python": platform.python_version()}
    for tag, package in _PACKAGES.items():
        try:
            versions[f"version.{tag}"] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _machine() -> dict[str, str]:
    machine = {
        "host.name": platform.node(),
        "host.os": platform.platform(),
        "host.cpu": _cpu_model(),
        "host.cores": f"{usable_processors():g}",
        "host.memory_bytes": str(_memory_bytes()),
    }
    gpus = gpu_names()
    if gpus:
        machine["host.gpus"] = ", ".join(gpus)
    return {key: value for key, value in machine.items() if value}


def gpu_names() -> list[str]:
    """Names of the visible GPUs, in torch's order; empty where there is no driver."""
    try:
        return [gpu.name for gpu in found_gpus().gpus]
    except ConfigError:
        return []


def _memory_bytes() -> str:
    try:
        return str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return ""


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _run(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
