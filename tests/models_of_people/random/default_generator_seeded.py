"""The seed given to torch.default_generator itself, within fork_rng."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            noise = torch.randn(8)
        return self.b(self.a(x) + noise)


EXPECT = "refused"
REASON = "sets torch.s generator"
