"""Mixup inside the model, its share drawn from a Beta by NumPy's generator."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Mixup(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, x):
        lam = float(np.random.beta(0.4, 0.4))
        index = torch.arange(x.shape[0]).flip(0)
        return self.net(lam * x + (1 - lam) * x[index]), lam, index


def loss(outputs, targets):
    logits, lam, index = outputs
    return lam * F.cross_entropy(logits, targets) + (1 - lam) * F.cross_entropy(logits, targets[index])


EXPECT = "refused"
REASON = "numpy|random"
