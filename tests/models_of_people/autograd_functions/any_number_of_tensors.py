"""A function of any number of tensors."""

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


class FnListOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *xs):
        return tuple((x * (i + 1) for i, x in enumerate(xs)))

    @staticmethod
    def backward(ctx, *gs):
        return tuple((g * (i + 2) for i, g in enumerate(gs)))


def build():

    class M(Base):
        def forward(self, x):
            h = self.a(x)
            p, q = FnListOut.apply(h, h.relu())
            return self.b(p + q)

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "equal"
