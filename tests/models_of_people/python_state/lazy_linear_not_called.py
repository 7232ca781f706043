"""Lazy modules that nobody called yet: an optimiser made before the first call would train nothing."""

from torch import nn


def build():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LazyLinear(7), nn.ReLU(), nn.Linear(7, 5))


EXPECT = "refused"
REASON = "lazy|uninitialized|uninitialised"
