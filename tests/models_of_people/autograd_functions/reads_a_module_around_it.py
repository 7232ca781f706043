"""A function reads the weights of a module from around it."""

import torch

from tests.models_of_people.bases import Base


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


EXPECT = "refused"
REASON = "passed to it|elsewhere"
