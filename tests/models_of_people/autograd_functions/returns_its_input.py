"""A function that returns its input, with another gradient."""

import torch
from torch import nn

from tests.models_of_people.data import vectors


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Linear(6, 8), nn.Linear(8, 5))
        self.init()

    def init(self):
        pass

    def forward(self, x):
        return self.b(self.a(x).relu())


class FnSame(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 3


def build():

    class M(Base):
        def forward(self, x):
            return self.b(FnSame.apply(self.a(x)))

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "equal"
