"""Gaussian noise on activations by randn_like, uniform by rand."""

import torch
from torch import nn


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x)
        if self.training:
            h = h + 0.1 * torch.randn_like(h) + 0.05 * (torch.rand(h.shape[0], 1) - 0.5)
        return self.b(h.relu())


RANDOM = True
