"""Hashing by a layer's own seed, as in LSH attention; the dropout after it follows from that seed."""

import torch
from torch import nn


class Hashed(nn.Module):
    def __init__(self):
        super().__init__()
        self.seed = 3
        self.buckets = nn.Embedding(4, 6)

    def forward(self, x):
        torch.manual_seed(self.seed)
        planes = torch.randn(x.shape[-1], 4)
        return x + self.buckets((x @ planes).argmax(-1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hashed = Hashed()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)
        self.drop = nn.Dropout(0.4)

    def forward(self, x):
        h = self.drop(self.a(self.hashed(x)).relu())
        return self.b(h)


EXPECT = "refused"
REASON = "sets torch.s generator"
