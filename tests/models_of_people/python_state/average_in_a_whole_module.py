"""A running mean as a plain attribute of a module that stays whole."""

import torch
from torch import nn

from tests.models_of_people.bases import Scaled


def build():

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(6, 6)
            self.ema = torch.zeros(6)

        def forward(self, x):
            if x.sum() > 1000000000.0:
                x = x * 0
            y = self.lin(x) + self.ema
            self.ema = 0.9 * self.ema + 0.1 * y.detach().mean(0)
            return y

    class M(Scaled):
        def init(self):
            self.inner = Inner()

        def forward(self, x):
            return super().forward(self.inner(x))

    return M()


EXPECT = "refused"
REASON = r"state|stays whole \(Inner\)"
