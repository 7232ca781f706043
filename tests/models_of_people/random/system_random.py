"""Layer scale drawn by the operating system."""

import random

from torch import nn

DRAWN = random.SystemRandom()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(x) * (1.0 if DRAWN.random() > 0.05 else 0.5)


EXPECT = "refused"
REASON = "draws from Python's random"
