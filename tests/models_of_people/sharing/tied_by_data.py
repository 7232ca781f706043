"""Tied by `.data`: two parameters over one storage, each stepped by the optimiser."""

from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)
        self.b.weight.data = self.a.weight.data
        self.out = nn.Linear(6, 5)

    def forward(self, x):
        return self.out(self.b(self.a(x).tanh()).tanh())


EXPECT = "either"
REASON = "storage|share|shares"
