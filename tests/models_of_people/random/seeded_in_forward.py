"""torch.manual_seed in the forward: the same projection at each call."""

import torch
from torch import nn


class Projected(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            projection = torch.randn(6, 8)
        return self.fc((x @ projection).tanh())


EXPECT = "refused"
REASON = "sets torch.s generator"
