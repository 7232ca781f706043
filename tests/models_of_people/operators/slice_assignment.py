"""Slices of a fresh tensor assigned one after another."""

import torch
from torch import nn

from tests.models_of_people.data import images


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 5)

    def forward(self, x):
        x = self.conv(x)
        out = torch.zeros_like(x)
        out[:, 0:1, :, 1:] = x[:, 0:1, :, :-1]
        out[:, 1:2, :, :-1] = x[:, 1:2, :, 1:]
        out[:, 2, 1:] = x[:, 2, :-1]
        out[:, 3] = x[:, 3]
        return self.fc(out.square().mean((2, 3)))


batch = images()
