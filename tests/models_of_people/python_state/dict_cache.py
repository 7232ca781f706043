"""A cache by sequence length: a causal mask made once, and kept in a dict."""

import torch
from torch import nn

from tests.models_of_people.data import sequences


class CausalAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.masks = {}
        self.qkv = nn.Linear(6, 18)
        self.fc = nn.Linear(6, 5)

    def mask(self, n):
        if n not in self.masks:
            self.masks[n] = torch.full((n, n), float("-inf")).triu(1)
        return self.masks[n]

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 6**0.5 + self.mask(x.shape[1])
        return self.fc((scores.softmax(-1) @ v)[:, -1])


batch = sequences()
