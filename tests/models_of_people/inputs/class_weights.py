"""Targets come with a tensor that is no longer than the classes: it is not cut into micro-batches."""

import torch
from torch import nn
from torch.nn import functional as F


def build():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))


def loss(outputs, targets, weight):
    return F.cross_entropy(outputs, targets, weight=weight)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, 5, (8,), generator=g), torch.rand(5, generator=g) + 0.5
    return torch.randn(8, 6, generator=g), targets


EXPECT = "either"
REASON = "samples|batch|length|shape"
