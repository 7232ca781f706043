"""Forward-mode derivatives in the loss: a physics-informed net."""

import torch
from torch import nn
from torch.func import jvp

from tests.models_of_people.data import regression


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, t):
        u, du = jvp(self.net, (t,), (torch.ones_like(t),))
        return (du + u).square().mean() + (self.net(t[:1] * 0) - 1).square().mean()


def loss(value, targets):
    return value


batch = regression(features=1)
EXPECT = "either"
REASON = "jvp|func|forward-mode|dual|higher"
