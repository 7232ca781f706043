"""The same, updated in place under no_grad."""

import torch
from torch import nn


class Centre(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(8)

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return x - self.mean


def build():
    return nn.Sequential(nn.Linear(6, 8), Centre(), nn.ReLU(), nn.Linear(8, 5))


EXPECT = "either"
REASON = "mean|state|chang|attribute|assign"
