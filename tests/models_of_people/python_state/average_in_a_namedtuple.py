"""A running mean in a namedtuple."""

import collections

import torch

from tests.models_of_people.bases import Scaled

NT = collections.namedtuple("NT", "m v")


class M(Scaled):
    def init(self):
        self.st = NT(torch.zeros(8), torch.ones(8))

    def forward(self, x):
        h = self.a(x).relu()
        out = self.b((h - self.st.m) / self.st.v)
        self.st = NT(0.9 * self.st.m + 0.1 * h.detach().mean(0), self.st.v)
        return out


EXPECT = "refused"
REASON = "state"
