"""Spectral norm as a parametrization."""

from torch import nn
from torch.nn.utils.parametrizations import spectral_norm


def build():
    return nn.Sequential(spectral_norm(nn.Linear(6, 8)), nn.ReLU(), spectral_norm(nn.Linear(8, 5)))
