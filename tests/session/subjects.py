"""A small comparison on two described devices, which several tests forecast."""

from typing import Any

import torch
from torch import nn

from netsplit.cluster.described import ClusterDescription, DescribedDevice, LinkCost, described_cluster
from netsplit.data import synthetic
from netsplit.partition import Partitioner
from netsplit.program import GPipe
from netsplit.session.comparison import Experiment
from netsplit.settings import Settings

__all__ = ["experiment_of", "two"]


def two(model: str | None = "TITAN RTX", capacity: str = "4GB") -> ClusterDescription:
    devices = [DescribedDevice(name, capacity=capacity, model=model) for name in ("a", "b")]
    return described_cluster("two", devices, LinkCost(8e9, 2e-5))


def experiment_of(*methods: Partitioner, **changes: Any) -> Experiment:
    """Two layers on batches of eight samples in two micro-batches."""
    torch.manual_seed(0)
    parts: dict[str, Any] = {
        "name": "small",
        "model": nn.Sequential(nn.Flatten(), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 10)),
        "loss": nn.CrossEntropyLoss(),
        "data": synthetic(shape=[3, 4, 4]),
        "partitioners": {method.name: method for method in methods},
        "schedule": GPipe(2),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "settings": Settings(epochs=1, batch_size=8, seed=0),
    }
    return Experiment(**(parts | changes))
