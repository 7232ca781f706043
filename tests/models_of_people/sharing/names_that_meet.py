"""Names that are one when dots become underscores: `a.b` and `a_b`."""

import torch
from torch import nn


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.randn(6))
        self.b_c = nn.Parameter(torch.randn(6))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = Inner()
        self.a_b = nn.Parameter(torch.randn(6))
        self.a_b_c = nn.Parameter(torch.randn(6))
        self.out = nn.Linear(6, 5)

    def forward(self, x):
        return self.out((x * self.a.b + self.a_b).tanh() * self.a.b_c + self.a_b_c)
