"""The second batch lies in memory otherwise, and the forward asks for that."""

import torch
from torch import nn

from tests.models_of_people.data import vectors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(x if x.is_contiguous() else 2 * x)


def batch(seed):
    x, y = vectors(6)(seed)
    # Rows of micro-batches are copies that lie as the batch does.
    return (x if seed == 0 else torch.stack(x.unbind(1)).t()), y
