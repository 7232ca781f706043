"""A running mean in a namedtuple."""

import collections

import torch
from torch import nn

from tests.models_of_people.data import vectors


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Linear(6, 8), nn.Linear(8, 5))
        self.extra = nn.Linear(6, 5)
        self.init()

    def init(self):
        pass

    def scale(self):
        return 1.0

    def forward(self, x):
        return self.b(self.a(x).relu()) * self.scale() + 0.1 * self.extra(x)


NT = collections.namedtuple("NT", "m v")


def build():

    class M(Base):
        def init(self):
            self.st = NT(torch.zeros(8), torch.ones(8))

        def forward(self, x):
            h = self.a(x).relu()
            out = self.b((h - self.st.m) / self.st.v)
            self.st = NT(0.9 * self.st.m + 0.1 * h.detach().mean(0), self.st.v)
            return out

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "refused"
REASON = "state"
