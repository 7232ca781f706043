"""A running mean as an attribute of the class."""

import torch

from tests.models_of_people.bases import Scaled


class M(Scaled):
    mean = torch.zeros(8)

    def forward(self, x):
        h = self.a(x)
        out = self.b(h - M.mean)
        M.mean = 0.9 * M.mean + 0.1 * h.detach().mean(0)
        return out


EXPECT = "refused"
REASON = "state"
