"""Hungarian matching by SciPy inside the loss (DETR)."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.nn import functional as F


class Detr(nn.Module):
    def __init__(self):
        super().__init__()
        self.queries, self.fc = nn.Parameter(torch.randn(5, 6)), nn.Linear(6, 2)

    def forward(self, x):
        return self.fc((x[:, None] + self.queries[None]).tanh())


def loss(outputs, targets):
    with torch.no_grad():
        cost = torch.cdist(outputs, targets)
        pairs = [linear_sum_assignment(c.numpy()) for c in cost]
    return sum(F.l1_loss(o[i], t[j]) for o, t, (i, j) in zip(outputs, targets, pairs, strict=True)) / len(
        pairs
    )


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(4, 6, generator=g), torch.randn(4, 3, 2, generator=g)


EXPECT = "either"
REASON = "numpy|value|data-dependent"
