"""A list that grows from call to call and is averaged: every step sees all steps before."""

import torch
from torch import nn


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x).tanh()
        self.seen.append(h.detach().mean(0))
        return self.b(h - torch.stack(self.seen).mean(0))


EXPECT = "refused"
REASON = "seen|state|chang|attribute"
