"""Modules that compare equal, of which torch gives an optimiser the first only."""

from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def __eq__(self, other):
        return isinstance(other, Layer)

    def __hash__(self):
        return 1

    def forward(self, x):
        return self.linear(x).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = Layer(), Layer(), nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.one(x) + 2 * self.two(x))


EXPECT = "refused"
REASON = "leaves out 'two.linear"
