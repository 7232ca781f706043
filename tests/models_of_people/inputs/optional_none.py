"""Optional arguments that are None in every batch."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.fc = nn.Linear(6, 6), nn.Linear(6, 12), nn.Linear(6, 5)

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        k, v = self.kv(context).chunk(2, -1)
        scores = self.q(x) @ k.mT
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return self.fc((scores.softmax(-1) @ v).mean(1))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(8, 4, 6, generator=g), None, None), torch.randint(0, 5, (8,), generator=g)
