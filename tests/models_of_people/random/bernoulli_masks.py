"""Masks by torch.bernoulli and in-place bernoulli_: masked autoencoding."""

import torch
from torch import nn


class MaskedAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(6))
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))

    def forward(self, x):
        mask = torch.empty_like(x).bernoulli_(0.3)
        more = torch.bernoulli(torch.full((x.shape[0], 1), 0.5))
        seen = torch.where(mask.bool(), self.token.expand_as(x), x)
        return ((self.net(seen * (1 + more)) - x).square() * mask).mean()


def loss(value, targets):
    return value


RANDOM = True
