"""NetSplit: decide which device runs which operator of a PyTorch model, and train it that way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netsplit.beside_torchvision import install
from netsplit.lazy import lazy_names

if TYPE_CHECKING:
    from netsplit.api import cpu_cluster, parallelize, plan
    from netsplit.cluster.local import local_cluster
    from netsplit.errors import NetSplitError
    from netsplit.graph.batches.batch import Arguments, per_sample, shared
    from netsplit.graph.onnx import from_onnx
    from netsplit.graph.random_draws import draws
    from netsplit.optim.learning_rate import LearningRate
    from netsplit.optim.optimizers import ParameterGroups
    from netsplit.placement.parallelism import Parallelism
    from netsplit.planning.whole.auto_schedule import AutoSchedule
    from netsplit.runtime.checkpoint.weights import CheckpointWeights, SafetensorsWeights, SeededWeights
    from netsplit.runtime.resharding.redistribute import redistribute
    from netsplit.session.session import Session
    from netsplit.training.adapt.adaptation import Adapt
    from netsplit.training.options import Training
    from netsplit.training.parallel import ParallelModel

__all__ = [
    "Adapt",
    "Arguments",
    "AutoSchedule",
    "CheckpointWeights",
    "LearningRate",
    "NetSplitError",
    "ParallelModel",
    "Parallelism",
    "ParameterGroups",
    "SafetensorsWeights",
    "SeededWeights",
    "Session",
    "Training",
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

__getattr__, __dir__ = lazy_names(__name__)
