"""Noise of a layer's own seed, put back by hand; the layers around it drop out as ever."""

import torch
from torch import nn


class Noise(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def forward(self, x):
        before = torch.get_rng_state()
        torch.manual_seed(self.seed)
        noise = torch.randn(x.shape[-1])
        torch.set_rng_state(before)
        return x + noise


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)
        self.noise, self.more = Noise(3), Noise(4)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        h = self.drop(self.noise(self.a(x)))
        return self.b(self.drop(self.more(h.relu())))


EXPECT = "refused"
REASON = "sets torch.s generator"
