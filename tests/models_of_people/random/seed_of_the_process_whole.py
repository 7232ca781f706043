"""The process's seed read in a module that a value keeps whole."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = F.relu(self.a(x))
        if h.sum().item() > 1e9:
            return self.b(-h)
        return self.b(h + torch.initial_seed() % 10)


EXPECT = "refused"
REASON = "sets torch.s generator, or asks for its seed"
