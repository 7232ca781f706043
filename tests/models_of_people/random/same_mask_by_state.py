"""The same mask twice, by the generator's state taken and given back."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x)
        state = torch.get_rng_state()
        first = F.dropout(h, 0.5)
        torch.set_rng_state(state)
        second = F.dropout(h, 0.5)
        return self.b(h + 10 * (first - second))


EXPECT = "refused"
REASON = "sets torch.s generator"
