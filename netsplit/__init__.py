"""NetSplit: decide which device runs which operator of a PyTorch model, and train it that way."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from netsplit.beside_torchvision import install

__all__ = [
    "Arguments",
    "LearningRate",
    "NetSplitError",
    "ParallelModel",
    "ParameterGroups",
    "Session",
    "cpu_cluster",
    "draws",
    "from_onnx",
    "local_cluster",
    "parallelize",
    "per_sample",
    "shared",
]

__version__ = "0.1.0"

install()

_HOME = {
    "Arguments": "netsplit.graph.batches.batch",
    "LearningRate": "netsplit.optim.learning_rate",
    "NetSplitError": "netsplit.errors",
    "ParallelModel": "netsplit.training.parallel",
    "ParameterGroups": "netsplit.optim.optimizers",
    "Session": "netsplit.experiment.session",
    "cpu_cluster": "netsplit.api",
    "draws": "netsplit.graph.plain_draws",
    "from_onnx": "netsplit.graph.onnx",
    "local_cluster": "netsplit.cluster.local",
    "parallelize": "netsplit.api",
    "per_sample": "netsplit.graph.batches.batch",
    "shared": "netsplit.graph.batches.batch",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: torch takes seconds."""
    if name not in _HOME:
        raise AttributeError(f"module 'netsplit' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)
