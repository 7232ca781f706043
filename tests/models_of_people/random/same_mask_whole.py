"""The same mask twice in a module that a value keeps whole."""

import torch
from torch import nn
from torch.nn import functional as F


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        state = torch.get_rng_state()
        first = F.dropout(x, 0.5)
        torch.set_rng_state(state)
        second = F.dropout(x, 0.5)
        if (first - second).abs().max().item() > 1e9:
            return x
        return self.fc(x) + 10 * (first - second)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = Inner(), nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.inner(x))


EXPECT = "refused"
REASON = "sets torch.s generator"
