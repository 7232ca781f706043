"""torch.randint_like of an activation that carries a gradient."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x)
        h = h * torch.randint_like(h, 0, 2)
        return self.b(F.relu(h) + torch.randint_like(h.t(), 3).t())


RANDOM = True
