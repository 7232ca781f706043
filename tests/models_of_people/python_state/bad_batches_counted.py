"""Batches with outliers are counted, and weigh from then on; the last micro-batch is smaller.

No batch before training is bad, so nothing shows: it slips.
"""

from torch import nn

from tests.models_of_people.data import vectors


class Guard(nn.Module):
    def __init__(self):
        super().__init__()
        self.bad = 0

    def forward(self, x):
        if bool((x.abs() > 100).any()):
            self.bad += 1
        return x * (1 + self.bad)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.guard, self.fc = Guard(), nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(self.guard(x))


batch = vectors(6, size=7)
