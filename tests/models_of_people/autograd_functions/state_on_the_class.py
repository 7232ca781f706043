"""A function that counts its calls on the class, and scales by the count: not the same from step to step."""

import torch
from torch import nn


class Annealed(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        Annealed.calls += 1
        ctx.scale = 1.0 / Annealed.calls
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.b(Annealed.apply(self.a(x)).relu())


EXPECT = "either"
REASON = "Annealed|state|changes|differ"
