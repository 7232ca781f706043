"""Submodules named `model` and `loss`, as wrappers have them."""

from torch import nn


class Wrapper(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.loss = nn.Linear(5, 5)

    def forward(self, x):
        return self.loss(self.model(x))


def build():
    return Wrapper(Wrapper(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))))
