"""A generator of the operating system within reach that the forward does not use."""

import random

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)
        self.seeds = random.SystemRandom()

    def forward(self, x):
        return self.fc(x)
