"""A model whose parameter is called `loss.weight`, and a loss that has a `weight`."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss = nn.Linear(6, 5, bias=False)

    def forward(self, x):
        return self.loss(x)


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))

    def forward(self, outputs, targets):
        return F.cross_entropy(outputs * self.weight, targets)


def build():
    return Model(), Weighted()


EXPECT = "either"
REASON = "name"
