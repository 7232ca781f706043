"""A module that does nothing but seed; what is drawn after it follows from that."""

import torch
from torch import nn


class Seeder(nn.Module):
    def forward(self, x):
        torch.manual_seed(5)
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seeder = Seeder()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)
        self.drop = nn.Dropout(0.4)

    def forward(self, x):
        return self.b(self.drop(self.a(self.seeder(x)).relu()))


EXPECT = "refused"
REASON = "sets torch.s generator"
