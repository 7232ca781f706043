"""A buffer that requires a gradient, which no optimiser steps."""

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

    class M(Base):
        def init(self):
            self.register_buffer("w", torch.ones(8, requires_grad=True))

        def forward(self, x):
            return self.b(self.a(x) * self.w)

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "refused"
REASON = "buffer"
