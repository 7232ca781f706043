"""A function reads the weights of a module from around it."""

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


def build():

    def make(mod):

        class Fn(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x + mod.bias.detach()

            @staticmethod
            def backward(ctx, g):
                return g

        return Fn

    class M(Base):
        def init(self):
            object.__setattr__(self, "fn", make(self.a))

        def forward(self, x):
            return self.b(self.fn.apply(self.a(x)))

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "refused"
REASON = "not given|elsewhere"
