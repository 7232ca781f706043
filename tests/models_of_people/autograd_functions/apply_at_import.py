"""`apply` bound to a name when the file is imported, as most repositories do."""

import torch
from torch import nn


class _ScaledGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


scaled_grad = _ScaledGrad.apply


class SlowTrunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(6, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(scaled_grad(self.trunk(x).relu(), 0.1))
