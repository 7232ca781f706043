"""One module reads the generator's state, another sets it: the same mask in both."""

import torch
from torch import nn
from torch.nn import functional as F


class First(nn.Module):
    def forward(self, x):
        self.state = torch.get_rng_state()
        return F.dropout(x, 0.5)


class Second(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.first = [first]

    def forward(self, x):
        torch.set_rng_state(self.first[0].state)
        return F.dropout(x, 0.5)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = First()
        self.two = Second(self.one)

    def forward(self, h):
        return h + 10 * (self.one(h) - self.two(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.twice, self.b = nn.Linear(6, 8), Twice(), nn.Linear(8, 5)

    def forward(self, x):
        return self.b(self.twice(self.a(x)))


EXPECT = "refused"
REASON = "sets torch.s generator"
