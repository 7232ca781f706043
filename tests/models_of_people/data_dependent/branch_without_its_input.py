"""A part that by the values of a batch leaves its input out: what comes before it has no gradient then."""

import torch
from torch import nn

from tests.models_of_people.data import vectors


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.usual = nn.Linear(8, 8), nn.Parameter(torch.ones(8))

    def forward(self, x, wanted):
        if wanted.max() > 0:
            return self.fc(x)
        return (2 * self.usual).expand(len(x), 8)


class Gating(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.gated, self.head = nn.Linear(6, 8), Gated(), nn.Linear(8, 5)

    def forward(self, x, wanted):
        return self.head(torch.tanh(self.gated(torch.tanh(self.inward(x)), wanted)))


def batch(seed):
    x, y = vectors()(seed)
    return (x, torch.full((8,), float(seed == 0))), y
