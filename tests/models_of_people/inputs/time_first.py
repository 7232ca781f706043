"""Sequences with time first: the batch is the second dimension, so only one micro-batch is right."""

import torch
from torch import nn


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.LSTM(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.fc(out[-1])


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(4, 8, 6, generator=g), torch.randint(0, 5, (8,), generator=g)


MICROBATCHES = 1
EXPECT = "either"
REASON = "samples|batch|length|shape"
