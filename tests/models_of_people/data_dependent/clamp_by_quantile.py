"""Values by order statistics, all in tensors: quantile, argsort, bucketize."""

import torch
from torch import nn


class Clipped(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)
        self.levels = nn.Embedding(5, 8)

    def forward(self, x):
        h = self.a(x)
        limit = torch.quantile(h.detach().abs(), 0.9)
        h = torch.minimum(torch.maximum(h, -limit), limit)
        ranks = torch.bucketize(h[:, 0].detach(), torch.tensor([-0.5, 0.0, 0.5, 1.0]))
        return self.b(h + self.levels(ranks))
