"""A buffer that the first forward registers."""

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
        def forward(self, x):
            if not hasattr(self, "pos"):
                self.register_buffer("pos", torch.arange(6.0), persistent=False)
            return super().forward(x + self.pos)

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "refused"
REASON = "makes the buffer"
