"""Two dropouts under one seed: the same mask."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def dropped(self, h):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            return F.dropout(h, 0.5)

    def forward(self, x):
        h = self.a(x)
        return self.b(h + 10 * (self.dropped(h) - self.dropped(h)))


EXPECT = "refused"
REASON = "sets torch.s generator"
