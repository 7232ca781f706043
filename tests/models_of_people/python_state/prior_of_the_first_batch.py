"""Class counts of the first batch weigh all others."""

import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(x)


class Adjusted:
    prior = None

    def __call__(self, outputs, targets):
        if self.prior is None:
            self.prior = F.one_hot(targets, 5).sum(0).add(1).log()
        return F.cross_entropy(outputs + self.prior, targets)


build = Net
loss = Adjusted()
EXPECT = "refused"
REASON = "'prior'.*first batch"
