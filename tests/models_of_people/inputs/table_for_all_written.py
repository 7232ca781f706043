"""A tensor that is no sample's own is written: in a plain loop the next micro-batch sees that."""

import torch
from torch import nn

from tests.models_of_people.data import vectors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x, table):
        table.add_(1.0)
        return self.fc(x) + table.sum(0)


def batch(seed):
    x, y = vectors(6)(seed)
    return (x, torch.eye(3, 5)), y


EXPECT = "refused"
REASON = "every micro-batch gets whole"
