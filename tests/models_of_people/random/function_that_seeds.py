"""A Function of one's own that leaves the generator seeded; the dropout after it follows."""

import torch
from torch import nn
from torch.nn import functional as F


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        torch.manual_seed(3)
        return x + torch.randn_like(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.b(F.dropout(Noisy.apply(self.a(x)), 0.3))


EXPECT = "refused"
REASON = "sets torch.s generator"
