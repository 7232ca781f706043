"""A frozen copy of a layer made in the forward: the values of now, without gradient."""

import copy

from torch import nn


class Copying(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x):
        frozen = copy.deepcopy(self.a).requires_grad_(False)
        return self.b(self.a(x).relu() - 0.5 * frozen(x.flip(1)).relu())


EXPECT = "either"
REASON = "copy|parameter|fake"
