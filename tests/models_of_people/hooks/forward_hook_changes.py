"""A forward hook that returns another output."""

from torch import nn


def clamp(module, inputs, output):
    return output.clamp(-1, 1)


def build():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    model[0].register_forward_hook(clamp)
    return model
