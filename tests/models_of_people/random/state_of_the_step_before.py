"""The mask of the first step in all others, by the generator's state kept."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)
        self.state = None

    def forward(self, x):
        h = self.a(x)
        if self.state is None:
            self.state = torch.get_rng_state()
        else:
            torch.set_rng_state(self.state)
        return self.b(F.dropout(h, 0.3))


EXPECT = "refused"
REASON = "sets torch.s generator"
REASON = "sets torch.s generator"
