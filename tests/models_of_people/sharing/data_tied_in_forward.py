"""Weights that the forward gives the same data."""

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x):
        self.b.weight.data = self.a.weight.data
        return self.head(self.b(self.a(x).tanh()))


EXPECT = "refused"
REASON = "the parameter 'b.weight' is written in the forward"
