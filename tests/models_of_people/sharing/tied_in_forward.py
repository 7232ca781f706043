"""Weights that the forward ties."""

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x):
        self.b.weight = self.a.weight
        return self.head(self.b(self.a(x).tanh()))


EXPECT = "refused"
REASON = "replaces the parameter 'b.weight'"
