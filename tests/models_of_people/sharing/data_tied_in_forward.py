"""Weights that the forward gives the same data."""

from torch import nn

from tests.models_of_people.data import vectors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x):
        self.b.weight.data = self.a.weight.data
        return self.head(self.b(self.a(x).tanh()))


def build():
    return Net()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "refused"
REASON = "the parameter 'b.weight' is written in the forward"
