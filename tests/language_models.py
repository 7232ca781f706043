"""Small language models in plain torch, as GPT-2 and as Llama 3 are built, with rounding far below 1e-12."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.models.transformers import TransformerBlock

__all__ = ["LANGUAGE_MODELS", "GptLike", "LlamaLike", "NextTokens", "tokens"]

WORDS, LENGTH, WIDTH, HEADS = 20, 8, 16, 4


class GptLike(nn.Module):
    """LayerNorm, queries, keys and values of one weight, learned positions."""

    def __init__(self, layers: int = 2, tied: bool = False) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            TransformerBlock(WIDTH, HEADS, causal=True, norm_first=True, dropout=0.0, gelu="tanh", eps=1e-5)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LlamaBlock(nn.Module):
    """RMSNorm, rotary positions, two heads of queries to one of keys and values, SwiGLU."""

    def __init__(self, repeated: bool) -> None:
        super().__init__()
        self.repeated = repeated  # keys and values, by the model itself
        self.before, self.after = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.queries, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.keys, self.values = (nn.Linear(WIDTH, WIDTH // 2, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, 24, bias=False) for _ in range(2))
        self.down = nn.Linear(24, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.before(x)
        q, k, v = (
            of(y).unflatten(2, (-1, WIDTH // HEADS)).transpose(1, 2)
            for of in (self.queries, self.keys, self.values)
        )
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if self.repeated:
            k, v = (each.repeat_interleave(2, dim=1) for each in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not self.repeated)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.after(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class LlamaLike(nn.Module):
    """Blocks that all read one table of rotations."""

    def __init__(self, layers: int = 2, repeated: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(LlamaBlock(repeated) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        angles = torch.outer(torch.arange(LENGTH), torch.tensor([1.0, 0.01])).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


class NextTokens(nn.Module):
    """Cross entropy of (n, t, words) and (n, t)."""

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


LANGUAGE_MODELS = {
    "gpt": GptLike,
    "tied": lambda: GptLike(tied=True),
    "llama": LlamaLike,
    "repeated": lambda: LlamaLike(repeated=True),
}


def tokens(samples: int = 8) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (n, t) each."""
    generator = torch.Generator().manual_seed(5)
    inputs, targets = (torch.randint(WORDS, (samples, LENGTH), generator=generator) for _ in range(2))
    return inputs, targets
