"""A Siamese net: one encoder on both inputs."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.models_of_people.data import pairs


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, a, b):
        return self.encoder(a), self.encoder(b)


def loss(outputs):
    a, b = outputs
    apart = F.relu(1.0 - (a - b.roll(1, 0)).norm(dim=1)).square()
    return ((a - b).square().sum(1) + apart).mean() + 0 * torch.ones(()).sum()


batch = pairs()
