"""What a result depends on besides its configuration: versions and machine. All values are tags."""

from __future__ import annotations

import platform
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil

from netsplit.cluster.local import usable_processors
from netsplit.cluster.nvml import found_gpus
from netsplit.errors import ConfigError

__all__ = ["cpu_model", "gpu_names", "host_tags"]

_PACKAGES = {
    "netsplit": "netsplit", "torch": "torch", "torchvision": "torchvision", "mlflow": "mlflow",
    "gurobi": "gurobipy", "highs": "highspy", "ortools": "ortools", "scip": "PySCIPOpt",
}  # fmt: skip


@cache
def host_tags() -> dict[str, str]:
    """Tags ``version.*`` and ``host.*``; a fact that cannot be found is left out."""
    tags = {"version.python": platform.python_version()}
    for tag, package in _PACKAGES.items():
        with suppress(metadata.PackageNotFoundError):
            tags[f"version.{tag}"] = metadata.version(package)
    tags |= {
        "host.name": platform.node(),
        "host.os": platform.platform(),
        "host.cpu": cpu_model(),
        "host.cores": f"{usable_processors():g}",
        "host.memory_bytes": str(psutil.virtual_memory().total),
        "host.gpus": ", ".join(gpu_names()),
    }
    return {key: value for key, value in tags.items() if value}


def gpu_names() -> list[str]:
    """Names of the visible GPUs, in torch's order; empty where there is no driver."""
    try:
        return [gpu.name for gpu in found_gpus().gpus]
    except ConfigError:
        return []


def cpu_model() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()
