"""Lazy modules: shapes are found out at the first call, which comes before training."""

import torch
from torch import nn

from tests.models_of_people.data import images


def build():
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
    model(torch.zeros(1, 3, 8, 8))
    return model


batch = images()
