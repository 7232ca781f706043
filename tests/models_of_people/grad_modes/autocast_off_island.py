"""A normalisation in an autocast(enabled=False) island; autocast is off outside too."""

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def build():
    return nn.Sequential(nn.Linear(6, 8), RMSNorm(8), nn.SiLU(), nn.Linear(8, 5))
