"""The size of the first batch scales all others: in micro-batches it would be another.

A plain loop in micro-batches sees the micro-batches' size as well.
"""

from torch import nn


class Net(nn.Module):
    n = None

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        if self.n is None:
            self.n = x.shape[0]
        return self.fc(x) * self.n / 8
