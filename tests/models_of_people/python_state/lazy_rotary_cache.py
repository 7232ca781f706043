"""Rotary embeddings, cos and sin made lazily and kept on the module."""

import torch
from torch import nn

from tests.models_of_people.data import sequences


class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, dim, 2) / dim)), persistent=False)
        self.seq_len_cached = None

    def forward(self, x):
        n = x.shape[1]
        if n != self.seq_len_cached:
            self.seq_len_cached = n
            t = torch.arange(n, device=x.device).type_as(self.inv_freq)
            freqs = torch.outer(t, self.inv_freq)
            emb = torch.cat((freqs, freqs), dim=-1)
            self.cos_cached, self.sin_cached = emb.cos()[None], emb.sin()[None]
        half = x.shape[-1] // 2
        rotated = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * self.cos_cached + rotated * self.sin_cached


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(3))
        self.rotary = Rotary(6)
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        q, k = self.rotary(self.q(x)), self.rotary(self.k(x))
        return self.fc((torch.softmax(q @ k.mT, -1) @ self.v(x)).mean(1))


batch = sequences()
