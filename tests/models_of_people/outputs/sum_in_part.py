"""A mean, and beside it a penalty that is summed over the samples."""

import torch.nn.functional as F
from torch import nn


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.fc = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        code = self.encode(x)
        return self.fc(code), code


def loss(outputs, targets):
    scores, code = outputs
    return F.cross_entropy(scores, targets) + 0.01 * code.abs().sum()
