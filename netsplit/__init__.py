"""NetSplit: decide which device runs which operator of a PyTorch model, and train it that way."""

from __future__ import annotations

from netsplit.beside_torchvision import install
from netsplit.lazy import imports_of

__all__ = [
    "Adapt",
    "Arguments",
    "AutoSchedule",
    "CheckpointWeights",
    "LearningRate",
    "NetSplitError",
    "ParallelModel",
    "ParameterGroups",
    "SafetensorsWeights",
    "SeededWeights",
    "Session",
    "cpu_cluster",
    "draws",
    "from_onnx",
    "local_cluster",
    "parallelize",
    "per_sample",
    "plan",
    "redistribute",
    "shared",
]

__version__ = "0.1.0"

install()

__getattr__ = imports_of(
    __name__,
    {
        "Adapt": "training.adapt.adaptation",
        "Arguments": "graph.batches.batch",
        "AutoSchedule": "planning.whole.auto_schedule",
        "CheckpointWeights": "runtime.checkpoint.weights",
        "LearningRate": "optim.learning_rate",
        "NetSplitError": "errors",
        "ParallelModel": "training.parallel",
        "ParameterGroups": "optim.optimizers",
        "SafetensorsWeights": "runtime.checkpoint.weights",
        "SeededWeights": "runtime.checkpoint.weights",
        "Session": "experiment.session",
        "cpu_cluster": "api",
        "draws": "graph.plain_draws",
        "from_onnx": "graph.onnx",
        "local_cluster": "cluster.local",
        "parallelize": "api",
        "per_sample": "graph.batches.batch",
        "plan": "api",
        "redistribute": "runtime.resharding.redistribute",
        "shared": "graph.batches.batch",
    },
)
