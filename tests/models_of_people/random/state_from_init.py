"""Noise from a state of the generator that was read when the model was made."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)
        self.state = torch.get_rng_state()

    def forward(self, x):
        h = self.a(x)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.state)
            h = F.dropout(h, 0.3)
        return self.b(h)


EXPECT = "refused"
REASON = "sets torch.s generator"
