"""A function that returns a view of its input."""

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


class FnView(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(x.shape[0], 2, 4)

    @staticmethod
    def backward(ctx, g):
        return 2 * g.reshape(g.shape[0], 8)


def build():

    class M(Base):
        def forward(self, x):
            return self.b(FnView.apply(self.a(x)).flatten(1))

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "equal"
