"""The loss averages the model into a teacher around it."""

import copy

import torch
from torch.nn import functional as F

from tests.models_of_people.bases import Base


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


EXPECT = "either"
REASON = "state|teacher|written|differ"
