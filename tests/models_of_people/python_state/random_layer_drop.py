"""LayerDrop by Python's random."""

import random

from torch import nn


class LayerDrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            if self.training and random.random() < 0.5:
                continue
            x = x + layer(x).relu()
        return self.head(x)


EXPECT = "refused"
REASON = "random"
