"""A Python number that is another in every batch: a learning schedule handed to the forward."""

import torch
from torch import nn


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x, alpha):
        return alpha * self.a(x) + (1 - alpha) * self.b(x)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(8, 6, generator=g), 1 / (1 + seed)), torch.randint(0, 5, (8,), generator=g)
