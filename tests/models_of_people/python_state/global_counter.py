"""A module-level counter decides which of two heads is used, in turn."""

from torch import nn

STEP = 0


class Alternating(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.heads = nn.ModuleList([nn.Linear(8, 5), nn.Linear(8, 5)])

    def forward(self, x):
        global STEP
        STEP += 1
        return self.heads[STEP % 2](self.body(x).relu())


EXPECT = "refused"
REASON = "global|state|chang|differ|STEP|again"
