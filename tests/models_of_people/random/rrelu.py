"""Randomised leaky ReLU."""

from torch import nn


def build():
    return nn.Sequential(nn.Linear(6, 12), nn.RReLU(), nn.Linear(12, 5))


RANDOM = True
