"""NetSplit: decide which device runs which operator of a PyTorch model, and train it that way."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = [
    "LearningRate",
    "NetSplitError",
    "ParallelModel",
    "ParameterGroups",
    "Session",
    "cpu_cluster",
    "local_cluster",
    "parallelize",
]

__version__ = "0.1.0"

_HOME = {
    "LearningRate": "netsplit.learning_rate",
    "NetSplitError": "netsplit.errors",
    "ParallelModel": "netsplit.parallel",
    "ParameterGroups": "netsplit.optimizers",
    "Session": "netsplit.session",
    "cpu_cluster": "netsplit.api",
    "local_cluster": "netsplit.cluster.local",
    "parallelize": "netsplit.api",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: torch takes seconds."""
    if name not in _HOME:
        raise AttributeError(f"module 'netsplit' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)
