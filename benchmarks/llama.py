"""Llama 3.1 of any size in plain torch: RMSNorm, rotary positions, grouped queries, SwiGLU.

Source: Grattafiori et al., The Llama 3 Herd of Models, 2024, table 3. On the meta device it holds no values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu

__all__ = ["SIZES", "Llama", "LlamaSize", "next_token_loss"]


@dataclass(frozen=True)
class LlamaSize:
    """Layers, width, hidden width of the feed-forward part, heads, heads of keys and values, vocabulary."""

    layers: int
    dim: int
    hidden: int
    heads: int
    groups: int
    vocabulary: int = 128_256


SIZES = {
    "8B": LlamaSize(32, 4096, 14336, 32, 8),
    "70B": LlamaSize(80, 8192, 28672, 64, 8),
    "405B": LlamaSize(126, 16384, 53248, 128, 8),
}


class Llama(nn.Module):
    """Tokens [n, length] to logits [n, length, vocabulary].

    Args:
        length: of texts, at most.
        device: "meta" holds no values.
    """

    def __init__(self, size: LlamaSize, length: int, device: str = "meta") -> None:
        super().__init__()
        with torch.device(device):
            self.embedding = nn.Embedding(size.vocabulary, size.dim)
            self.blocks = nn.ModuleList(_Block(size, length) for _ in range(size.layers))
            self.norm = _RMSNorm(size.dim)
            self.head = nn.Linear(size.dim, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class _RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight.shape, self.weight, 1e-5)


class _Block(nn.Module):
    """A layer; its turns of positions are buffers of its own, so that layers may be on different devices."""

    cos: Tensor
    sin: Tensor

    def __init__(self, size: LlamaSize, length: int) -> None:
        super().__init__()
        self.width = size.dim // size.heads
        narrow = size.groups * self.width
        self.attention_norm, self.norm = _RMSNorm(size.dim), _RMSNorm(size.dim)
        self.q = nn.Linear(size.dim, size.dim, bias=False)
        self.k, self.v = (nn.Linear(size.dim, narrow, bias=False) for _ in range(2))
        self.o = nn.Linear(size.dim, size.dim, bias=False)
        self.gate, self.up = (nn.Linear(size.dim, size.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(size.hidden, size.dim, bias=False)
        rates = 500_000.0 ** (-torch.arange(0, self.width, 2, dtype=torch.float32) / self.width)
        angles = torch.outer(torch.arange(length, dtype=torch.float32), rates)
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        q, k, v = (self._heads(each(normed)) for each in (self.q, self.k, self.v))
        q, k = (_rotated(each, self.cos, self.sin) for each in (q, k))
        seen = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(seen.transpose(1, 2).flatten(2))
        normed = self.norm(x)
        return x + self.down(silu(self.gate(normed)) * self.up(normed))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.width)).transpose(1, 2)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of coordinates of each head turned by their position's angle; computed in single precision."""
    one, other = x.float().chunk(2, -1)
    turned = torch.cat([-other, one], -1)
    return (x.float() * cos + turned * sin).to(x.dtype)


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over all tokens [n, length]; in single precision."""
    return cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
