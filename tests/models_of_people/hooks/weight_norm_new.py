"""weight_norm as a parametrization."""

from torch import nn
from torch.nn.utils.parametrizations import weight_norm


def build():
    return nn.Sequential(weight_norm(nn.Linear(6, 8)), nn.ELU(), weight_norm(nn.Linear(8, 5), dim=None))
