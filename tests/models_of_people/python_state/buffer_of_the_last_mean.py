"""A buffer is given the last batch's mean."""

import torch

from tests.models_of_people.bases import Base


class M(Base):
    def init(self):
        self.register_buffer("h", torch.zeros(8))

    def forward(self, x):
        y = self.a(x) + self.h
        self.h = y.mean(0).detach()
        return self.b(y)
