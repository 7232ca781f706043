"""MoCo's key encoder: updated and run under no_grad, with BatchNorm in training mode."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.models_of_people.data import pairs


def encoder():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


class MoCo(nn.Module):
    def __init__(self, m=0.99):
        super().__init__()
        self.m = m
        self.encoder_q, self.encoder_k = encoder(), encoder()
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            k.data.copy_(q.data)
            k.requires_grad = False

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            for pq, pk in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
                pk.data = pk.data * self.m + pq.data * (1.0 - self.m)
            k = F.normalize(self.encoder_k(im_k), dim=1)
        return q @ k.T / 0.2


def loss(logits):
    return F.cross_entropy(logits, torch.arange(len(logits)))


batch = pairs()
EXPECT = "either"
REASON = "data|assign|state|chang|encoder_k"
