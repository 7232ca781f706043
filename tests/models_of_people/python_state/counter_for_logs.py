"""A counter that only counts: nothing reads it in the forward but a print now and then."""

from torch import nn


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, x):
        self.steps += 1
        if self.steps % 1000 == 0:
            print("step", self.steps)  # noqa: T201
        return self.net(x)


EXPECT = "either"
REASON = "steps|state|chang|attribute"
