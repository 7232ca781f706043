"""torch.seed() in the forward: no two trainings are the same."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        torch.seed()
        return self.b(F.dropout(self.a(x), 0.3))


EXPECT = "refused"
REASON = "sets torch.s generator"
