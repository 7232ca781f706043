"""NetSplit: decide which device runs which operator of a PyTorch model, and train it that way."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = [
    "NetSplitError",
    "ParallelModel",
    "Session",
    "cpu_cluster",
    "from_onnx",
    "local_cluster",
    "parallelize",
]

__version__ = "0.1.0"

_HOME = {
    "NetSplitError": "netsplit.errors",
    "ParallelModel": "netsplit.parallel",
    "Session": "netsplit.session",
    "cpu_cluster": "netsplit.api",
    "from_onnx": "netsplit.graph.onnx",
    "local_cluster": "netsplit.cluster.local",
    "parallelize": "netsplit.api",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: torch takes seconds."""
    if name not in _HOME:
        raise AttributeError(f"module 'netsplit' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)
