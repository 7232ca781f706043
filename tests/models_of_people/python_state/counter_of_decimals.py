"""A counter that is a Decimal."""

from decimal import Decimal

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)
        self.steps = Decimal(0)

    def forward(self, x):
        self.steps += 1
        return self.fc(x) * (1.0 if self.steps < 25 else 0.5)


EXPECT = "refused"
REASON = "'steps'"
