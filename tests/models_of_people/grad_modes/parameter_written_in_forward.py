"""Weights clipped in the forward (WGAN): a trained parameter is written in place under no_grad."""

import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        with torch.no_grad():
            for p in self.parameters():
                p.clamp_(-0.2, 0.2)
        return self.b(self.a(x).relu())


EXPECT = "either"
REASON = "in place|written|parameter"
