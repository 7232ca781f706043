"""A submodule through torch.compile (with a backend that needs no compiler)."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.compile(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), backend="eager")
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.body(x))


EXPECT = "either"
REASON = "compile"
