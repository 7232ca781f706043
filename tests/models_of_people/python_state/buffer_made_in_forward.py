"""A buffer that the first forward registers."""

import torch

from tests.models_of_people.bases import Base


class M(Base):
    def forward(self, x):
        if not hasattr(self, "pos"):
            self.register_buffer("pos", torch.arange(6.0), persistent=False)
        return super().forward(x + self.pos)


EXPECT = "refused"
REASON = "creates the buffer"
