"""A running mean in a dictionary, written in place."""

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
        def init(self):
            self.st = {"m": torch.zeros(8)}

        def forward(self, x):
            h = self.a(x).relu()
            self.st["m"].mul_(0.9).add_(0.1 * h.detach().mean(0))
            return self.b(h - self.st["m"])

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "either"
REASON = "state"
