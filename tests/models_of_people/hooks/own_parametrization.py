"""A parametrization of one's own: a symmetric matrix, and an orthogonal one of torch's."""

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).transpose(-1, -2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6, bias=False)
        self.c = nn.Linear(6, 5)
        parametrize.register_parametrization(self.a, "weight", Symmetric())
        parametrizations.orthogonal(self.b, orthogonal_map="cayley")

    def forward(self, x):
        with parametrize.cached():
            return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
