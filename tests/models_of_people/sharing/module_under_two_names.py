"""The same module registered under two names and in a list."""

from torch import nn

from tests.models_of_people.data import vectors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.alias = self.first
        self.layers = nn.ModuleList([self.first, nn.Linear(6, 6)])
        self.out = nn.Linear(6, 5)

    def forward(self, x):
        return self.out(self.layers[1](self.alias(self.first(x).relu()).relu()))


def build():
    return Net()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "equal"
