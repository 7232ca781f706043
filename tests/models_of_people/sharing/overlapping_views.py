"""Two parameters that overlap in one storage: a step of one is seen by the other."""

import torch
from torch import nn


class Overlap(nn.Module):
    def __init__(self):
        super().__init__()
        base = torch.randn(9, 6) * 0.3
        self.low = nn.Parameter(base[:6])
        self.high = nn.Parameter(base[3:])
        self.out = nn.Linear(12, 5)

    def forward(self, x):
        return self.out(torch.cat([x @ self.low.T, x @ self.high.T], 1).tanh())


EXPECT = "refused"
REASON = "storage|share|overlap"
