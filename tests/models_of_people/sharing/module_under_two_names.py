"""The same module registered under two names and in a list."""

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.alias = self.first
        self.layers = nn.ModuleList([self.first, nn.Linear(6, 6)])
        self.out = nn.Linear(6, 5)

    def forward(self, x):
        return self.out(self.layers[1](self.alias(self.first(x).relu()).relu()))
