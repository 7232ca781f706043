"""The loss sums a penalty over all parameters of the model, by a closure."""

import torch
from torch import nn
from torch.nn import functional as F


def build():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    start = [p.detach().clone() for p in model.parameters()]

    def loss(outputs, targets):
        drift = sum((p - s).square().sum() for p, s in zip(model.parameters(), start, strict=True))
        return (
            F.cross_entropy(outputs, targets)
            + 0.1 * drift
            + 1e-3 * torch.stack([p.norm() for p in model.parameters()]).sum()
        )

    return model, loss
