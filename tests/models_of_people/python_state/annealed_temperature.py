"""A temperature kept as a float, made smaller in every forward."""

from torch import nn


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = 2.0
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, x):
        self.temperature = max(0.5, self.temperature * 0.9)
        return self.net(x) / self.temperature


EXPECT = "refused"
REASON = "temperature|state|chang|attribute"
