"""A scale that depends on the clock: no two calls agree, so that no loop can be compared with."""

import time

from torch import nn


class Clocked(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, x):
        return self.net(x) * (1 + 0.1 * (time.perf_counter_ns() % 1000) / 1000)


EXPECT = "refused"
REASON = "time|clock|differ|chang|again"
