"""The model takes the targets and returns the loss alone."""

import torch
from torch import nn
from torch.nn import functional as F


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, x, y):
        return F.cross_entropy(self.net(x), y)


loss = None


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(8, 6, generator=g), torch.randint(0, 5, (8,), generator=g)), None
