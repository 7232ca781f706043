"""A buffer that requires a gradient, which no optimiser steps."""

import torch

from tests.models_of_people.bases import Base


class M(Base):
    def init(self):
        self.register_buffer("w", torch.ones(8, requires_grad=True))

    def forward(self, x):
        return self.b(self.a(x) * self.w)


EXPECT = "refused"
REASON = "buffer"
