"""A custom function counts its backwards in a closure."""

import torch

from tests.models_of_people.bases import Scaled


def build():
    st = {"n": 0}

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            st["n"] += 1
            return g * (2.0 if st["n"] > 3 else 1.0)

    class M(Scaled):
        def forward(self, x):
            return self.b(Fn.apply(self.a(x)))

    return M()


EXPECT = "refused"
REASON = "state|n"
