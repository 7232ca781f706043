"""Boolean indexing: as many rows as the mask has true."""

import torch
from torch import nn


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 8)
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x)
        keep = x[:, 0] > 0
        y = torch.zeros_like(h)
        y[keep] = self.b(h[keep])
        return self.out(h + y)


EXPECT = "either"
REASON = "data-dependent|value|nonzero"
