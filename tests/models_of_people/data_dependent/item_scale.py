"""`.item()` used as a number in what follows."""

from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        scale = x.abs().max().item()
        return self.b(self.a(x / scale).relu())


EXPECT = "either"
REASON = "item|value|data-dependent"
