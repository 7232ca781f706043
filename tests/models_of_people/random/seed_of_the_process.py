"""The process's seed, read in the forward: a number."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = F.dropout(self.a(x), 0.3)
        return self.b(h * 0 + self.a(x) + torch.initial_seed() % 10)


EXPECT = "refused"
REASON = "would not train as in plain PyTorch: the loss differs"
