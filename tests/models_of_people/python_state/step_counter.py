"""A warm-up by a counter: after three calls the branch is another."""

from torch import nn


class WarmUp(nn.Module):
    def __init__(self, warmup=3):
        super().__init__()
        self.calls, self.warmup = 0, warmup
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)
        self.extra = nn.Linear(6, 5)

    def forward(self, x):
        self.calls += 1
        y = self.b(self.a(x).relu())
        if self.calls > self.warmup:
            y = y + self.extra(x)
        return y


EXPECT = "refused"
REASON = "calls|state|chang|attribute"
