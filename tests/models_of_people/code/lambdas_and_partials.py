"""Lambdas, partials and bound methods as layers: what cannot be pickled."""

from functools import partial

import torch
from torch import nn

from tests.models_of_people.data import images


class Lambda(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


def build():
    scale = torch.tensor(0.5)
    return nn.Sequential(
        Lambda(lambda x: x * scale), nn.Conv2d(3, 4, 3), Lambda(partial(torch.clamp, min=0)),
        Lambda(lambda x: x.flatten(1)), nn.Linear(144, 5),
    )  # fmt: skip


batch = images()
