"""A schedule that is an iterator of iterators, the same for many steps.

The change at call 26 is later than the six steps that are compared: it slips.
"""

import itertools

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)
        self.factors = itertools.chain(itertools.repeat(1.0, 25), itertools.repeat(0.5))

    def forward(self, x):
        return self.fc(x) * next(self.factors)
