"""A running mean kept as a plain tensor attribute, never registered, and read in the next call."""

import torch
from torch import nn


class Centre(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(8)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


def build():
    return nn.Sequential(nn.Linear(6, 8), Centre(), nn.ReLU(), nn.Linear(8, 5))


EXPECT = "either"
REASON = "mean|state|chang|attribute|assign"
