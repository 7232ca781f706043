"""A function whose backward reads a class attribute, which the module sets in its forward."""

import torch
from torch import nn


class Scaled(torch.autograd.Function):
    factor = 1.0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * Scaled.factor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        Scaled.factor = 0.25
        return self.b(Scaled.apply(self.a(x).relu()))


EXPECT = "either"
REASON = "class|attribute|state|Scaled"
