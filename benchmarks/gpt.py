"""Megatron-LM's GPT in plain torch, as of Narayanan et al., SC 2021: attention keeps all its scores.

Masking and scaling are in the product of queries and keys, as its fused softmax does them while it reads.
Its dropout of residuals is fused with their sum; that of attention moves as many bytes as a `clamp`, which
stands for it, as parts of a dropout would draw other numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

__all__ = ["GPT"]


class GPT(nn.Module):
    """Tokens [n, length] to logits [n, length, vocabulary].

    Args:
        device: "meta" holds no values.
    """

    positions: Tensor

    def __init__(
        self, layers: int, width: int, heads: int, length: int, vocabulary: int, device: str = "meta"
    ) -> None:
        super().__init__()
        with torch.device(device):
            self.embedding = nn.Embedding(vocabulary, width)
            self.places = nn.Embedding(length, width)
            self.blocks = nn.ModuleList(_Block(width, heads, length) for _ in range(layers))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)
            self.register_buffer("positions", torch.arange(length), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.places(self.positions)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class _Block(nn.Module):
    mask: Tensor

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        mask = torch.full((1, length, length), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)  # of each block, so that each may lie anywhere

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        q, k, v = (self._heads(each(normed)) for each in (self.q, self.k, self.v))
        scores = torch.baddbmm(self.mask, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
        seen = torch.bmm(scores.softmax(-1).clamp(min=0.0), v)
        seen = seen.unflatten(0, (self.heads, -1)).permute(1, 2, 0, 3).flatten(2)
        x = x + self.out(seen)
        return x + self.down(gelu(self.up(self.norm(x)), approximate="tanh"))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).permute(2, 0, 1, 3).flatten(0, 1)
