"""Tied by `.data`: two parameters over one storage, each stepped by the optimiser."""

from torch import nn

from tests.models_of_people.data import vectors


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)
        self.b.weight.data = self.a.weight.data
        self.out = nn.Linear(6, 5)

    def forward(self, x):
        return self.out(self.b(self.a(x).tanh()).tanh())


def build():
    return Tied()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "either"
REASON = "storage|share|shares"
