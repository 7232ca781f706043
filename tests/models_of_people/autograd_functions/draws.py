"""A custom function draws its mask."""

import torch

from tests.models_of_people.bases import Base


class FnDraw(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        m = (torch.rand_like(x) > 0.3).to(x.dtype)
        ctx.save_for_backward(m)
        return x * m

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class M(Base):
    def forward(self, x):
        return self.b(FnDraw.apply(self.a(x)))
