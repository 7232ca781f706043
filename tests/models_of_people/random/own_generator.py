"""A torch.Generator of the model's own."""

import torch
from torch import nn


class Seeded(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x).relu()
        return self.b(h * (torch.rand(h.shape, generator=self.generator) > 0.3))


EXPECT = "either"
REASON = "generator"
