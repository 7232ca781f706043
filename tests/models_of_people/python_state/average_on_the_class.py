"""A running mean as an attribute of the class."""

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


def build():

    class M(Base):
        mean = torch.zeros(8)

        def forward(self, x):
            h = self.a(x)
            out = self.b(h - M.mean)
            M.mean = 0.9 * M.mean + 0.1 * h.detach().mean(0)
            return out

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "refused"
REASON = "state"
