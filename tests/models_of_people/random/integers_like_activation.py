"""torch.randint_like of an activation that carries a gradient."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.models_of_people.data import vectors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x)
        h = h * torch.randint_like(h, 0, 2)
        return self.b(F.relu(h) + torch.randint_like(h.t(), 3).t())


def build():
    return Net()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "equal"
RANDOM = True
