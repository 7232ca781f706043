"""The input goes through DLPack."""

import torch

from tests.models_of_people.bases import Base


class M(Base):
    def forward(self, x):
        return super().forward(torch.from_dlpack(x.detach()))


EXPECT = "either"
REASON = "dlpack"
