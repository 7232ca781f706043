"""A custom function draws its mask."""

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


class FnDraw(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        m = (torch.rand_like(x) > 0.3).to(x.dtype)
        ctx.save_for_backward(m)
        return x * m

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


def build():

    class M(Base):
        def forward(self, x):
            return self.b(FnDraw.apply(self.a(x)))

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "equal"
