"""A layer and its linearisation at the input (torch.func.linearize), which traces a graph of its own."""

import torch
from torch import nn


class Linearised(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        value, slope = torch.func.linearize(self.layer, x)
        return self.head(value + slope(x))


EXPECT = "either"
REASON = "torch.func|transforms"
