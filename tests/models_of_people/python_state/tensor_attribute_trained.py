"""An attribute with requires_grad that is no Parameter: the plain loop gives it a gradient nobody uses."""

import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.ones(8, requires_grad=True)
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.b(self.a(x).relu() * self.scale)


EXPECT = "either"
REASON = "scale|Parameter|attribute"
