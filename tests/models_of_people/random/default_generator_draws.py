"""generator=torch.default_generator, which is what torch draws from anyway."""

import torch
from torch import nn

from tests.models_of_people.data import vectors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x)
        return self.b(h + torch.rand(h.shape, generator=torch.default_generator))


def build():
    return Net()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "equal"
RANDOM = True
