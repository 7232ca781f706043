"""The loss averages the model into a teacher around it."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from tests.models_of_people.data import vectors


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Linear(6, 8), nn.Linear(8, 5))
        self.init()

    def init(self):
        pass

    def forward(self, x):
        return self.b(self.a(x).relu())


def build():
    m = Base()
    t = copy.deepcopy(m).requires_grad_(False)
    x = torch.randn(4, 6)

    def loss(o, y):
        with torch.no_grad():
            for p, q in zip(t.parameters(), m.parameters(), strict=True):
                p.mul_(0.9).add_(q, alpha=0.1)
        return F.cross_entropy(o, y) + (o - t(x)).pow(2).mean()

    return (m, loss)


batch = vectors(6)
EXPECT = "either"
REASON = "state|teacher|written|differ"
