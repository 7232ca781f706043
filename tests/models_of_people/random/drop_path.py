"""Stochastic depth for each sample, in timm's way."""

from torch import nn


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        keep = 1 - self.p
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        if keep > 0.0:
            mask.div_(keep)
        return x * mask


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.drops = nn.ModuleList(DropPath(0.2 * i) for i in range(3))
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        for layer, drop in zip(self.layers, self.drops, strict=True):
            x = x + drop(layer(x).relu())
        return self.head(x)


RANDOM = True
