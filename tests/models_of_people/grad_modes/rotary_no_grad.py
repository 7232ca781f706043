"""Rotary embeddings under `@torch.no_grad()`, cast back to the input's dtype."""

import torch
from torch import nn

from tests.models_of_people.data import sequences


class RotaryEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        inv_freq = 1.0 / (10000.0 ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @torch.no_grad()
    def forward(self, x, position_ids):
        freqs = (self.inv_freq[None, :, None] @ position_ids[:, None, :].float()).transpose(1, 2)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = RotaryEmbedding(6)
        self.qk = nn.Linear(6, 12)
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        cos, sin = self.rotary(x, torch.arange(x.shape[1])[None])
        q, k = self.qk(x).chunk(2, -1)
        q = q * cos + torch.cat((-q[..., 3:], q[..., :3]), -1) * sin
        k = k * cos + torch.cat((-k[..., 3:], k[..., :3]), -1) * sin
        return self.fc(((q @ k.mT).softmax(-1) @ x).mean(1))


batch = sequences()
