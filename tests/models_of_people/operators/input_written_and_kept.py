"""The input is written in place, and its backward and the loss need it."""

from torch import nn
from torch.nn import functional as F


def build():

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x):
            return (self.a(x.tanh_()), x)

    return (M(), lambda o, y: F.mse_loss(*o))
