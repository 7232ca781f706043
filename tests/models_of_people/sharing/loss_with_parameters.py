"""A loss with parameters of its own: weights of two tasks by their uncertainty."""

import torch
from torch import nn
from torch.nn import functional as F


class Uncertainty(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, outputs, targets):
        parts = torch.stack([F.cross_entropy(outputs, targets), outputs.square().mean()])
        return (parts * torch.exp(-self.log_vars) + self.log_vars).sum()


def build():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)), Uncertainty()
