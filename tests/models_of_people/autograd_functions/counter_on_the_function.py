"""A custom function counts its forwards."""

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

    class Fn(torch.autograd.Function):
        n = 0

        @staticmethod
        def forward(ctx, x):
            Fn.n += 1
            return x * (2.0 if Fn.n > 4 else 1.0)

        @staticmethod
        def backward(ctx, g):
            return g

    class M(Base):
        def forward(self, x):
            return self.b(Fn.apply(self.a(x)))

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "refused"
REASON = "state|n"
