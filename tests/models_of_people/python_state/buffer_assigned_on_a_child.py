"""A parent assigns a child's buffer."""

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
            self.a.register_buffer("s", torch.ones(8))

        def forward(self, x):
            h = self.a(x)
            self.a.s = 0.9 * self.a.s + 0.1 * h.detach().abs().mean(0)
            return self.b(h / self.a.s)

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "equal"
