"""A submodule through torch.compile (with a backend that needs no compiler)."""

import torch
from torch import nn

from tests.models_of_people.data import vectors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.compile(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), backend="eager")
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.body(x))


def build():
    return Net()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "either"
REASON = "compile"
