"""Complex signals in, complex weights within."""

import torch
from torch import nn


class ComplexLinear(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(b, a, dtype=torch.complex128) / a**0.5)

    def forward(self, x):
        return x @ self.weight.mT


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = ComplexLinear(6, 8)
        self.out = nn.Linear(16, 5)

    def forward(self, x):
        h = self.a(x)
        return self.out(torch.view_as_real(h).flatten(1).tanh())


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(8, 6, generator=g, dtype=torch.complex128), torch.randint(0, 5, (8,), generator=g)
