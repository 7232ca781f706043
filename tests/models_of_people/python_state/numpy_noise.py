"""Noise drawn by NumPy's global generator."""

import numpy as np
import torch
from torch import nn


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, x):
        noise = np.random.normal(0, 0.1, size=tuple(x.shape))
        return self.net(x + torch.from_numpy(noise).to(x))


EXPECT = "refused"
REASON = "numpy|random"
