"""Targets as a dict, for several heads."""

import torch
from torch import nn
from torch.nn import functional as F


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.kind, self.size = nn.Linear(8, 5), nn.Linear(8, 1)

    def forward(self, x):
        h = self.body(x).relu()
        return {"kind": self.kind(h), "size": self.size(h).squeeze(-1)}


def loss(outputs, targets):
    return F.cross_entropy(outputs["kind"], targets["kind"]) + F.mse_loss(outputs["size"], targets["size"])


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    targets = {"kind": torch.randint(0, 5, (8,), generator=g), "size": torch.randn(8, generator=g)}
    return torch.randn(8, 6, generator=g), targets
