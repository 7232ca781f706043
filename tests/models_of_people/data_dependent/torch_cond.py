"""torch.cond: both branches are in the graph."""

import torch
from torch import nn


class Cond(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x)
        h = torch.cond(x.sum() > 0, lambda h: h.sin(), lambda h: h.cos() * 2, (h,))
        return self.b(h)


EXPECT = "either"
REASON = "cond"
