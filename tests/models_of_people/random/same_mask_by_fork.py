"""A draw within fork_rng is drawn again after it."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x)
        with torch.random.fork_rng(devices=[]):
            first = F.dropout(h, 0.5)
        return self.b(h + 10 * (first - F.dropout(h, 0.5)))


EXPECT = "refused"
REASON = "sets torch.s generator"
