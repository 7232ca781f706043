"""A custom function counts its forwards."""

import torch

from tests.models_of_people.bases import Scaled


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

    class M(Scaled):
        def forward(self, x):
            return self.b(Fn.apply(self.a(x)))

    return M()


EXPECT = "refused"
REASON = "state|n"
