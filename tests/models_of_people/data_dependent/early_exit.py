"""`if x.mean() > 0`: another branch by value."""

from torch import nn


class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 8)
        self.exit, self.out = nn.Linear(8, 5), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x).tanh()
        if h.mean() > 0:
            return self.exit(h)
        return self.out(self.b(h).tanh())


EXPECT = "either"
REASON = "data-dependent|value|mean|control flow"
