"""The Transformer: a translation, by attention alone.

    source + positions -> block -> ... -> block ─────────────────┐ read
    target + positions -> block that also attends to the source -> ... -> scores

Vaswani et al., "Attention Is All You Need", NIPS 2017. Both languages and the scores share one matrix, as in
the paper; positions are its sines and cosines.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from netsplit.models._sizes import check_even, check_fraction, check_least, check_tokens
from netsplit.models._transformer import attend, check_heads

__all__ = ["Transformer", "transformer"]


class ProjectedAttention(nn.Module):
    """Multi-head attention of (n, t, width) to (n, s, width)."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.project = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        attended = attend(self.query(x), self.key(memory), self.value(memory), self.heads, causal=self.causal)
        return self.project(attended)


class TranslationBlock(nn.Module):
    """Attention to itself, to the source where it decodes, and a two-layer network; a norm after each sum."""

    def __init__(self, width: int, heads: int, hidden: int, decodes: bool, dropout: float) -> None:
        super().__init__()
        self.own = ProjectedAttention(width, heads, causal=decodes)
        self.source = ProjectedAttention(width, heads, causal=False) if decodes else None
        self.network = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 + decodes))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = self.norms[0](x + self.dropout(self.own(x, x)))
        if self.source is not None and memory is not None:
            x = self.norms[1](x + self.dropout(self.source(x, memory)))
        return self.norms[-1](x + self.dropout(self.network(x)))


class Transformer(nn.Module):
    """Source (n, s) and target (n, t) tokens, int64 -> scores (n, vocabulary, t) of the next of the target.

    Without a target the source stands for it: the model writes what it reads.
    """

    positions: Tensor

    def __init__(
        self, vocabulary: int, context: int, layers: int, heads: int, width: int, hidden: int, dropout: float
    ) -> None:
        super().__init__()
        self.context, self.scale = context, math.sqrt(width)
        self.tokens = nn.Embedding(vocabulary, width)
        self.register_buffer("positions", _waves(context, width), persistent=False)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList(
            TranslationBlock(width, heads, hidden, False, dropout) for _ in range(layers)
        )
        self.decoder = nn.ModuleList(
            TranslationBlock(width, heads, hidden, True, dropout) for _ in range(layers)
        )
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        nn.init.normal_(self.tokens.weight, std=1 / self.scale)

    def forward(self, source: Tensor, target: Tensor | None = None) -> Tensor:
        x = self._embedded(source)
        y = self._embedded(source if target is None else target)
        for block in self.encoder:
            x = block(x)
        for block in self.decoder:
            y = block(y, x)
        return linear(y, self.tokens.weight).transpose(1, 2)

    def _embedded(self, tokens: Tensor) -> Tensor:
        check_tokens(tokens, self.context)
        return self.dropout(self.tokens(tokens) * self.scale + self.positions[: tokens.shape[1]])


def _waves(context: int, width: int) -> Tensor:
    """(context, width): sines and cosines of falling frequencies, in turn."""
    frequencies = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angles = torch.arange(context).unsqueeze(1) * frequencies
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)


def transformer(
    vocabulary: int = 37000,
    context: int = 512,
    layers: int = 6,
    heads: int = 8,
    width: int = 512,
    hidden: int = 2048,
    dropout: float = 0.1,
) -> nn.Module:
    """The Transformer, by default the base model.

    Args:
        vocabulary: number of different tokens, of both languages together.
        context: the most tokens that a sample may have.
        layers: blocks of the encoder, and of the decoder.
        heads: of every attention.
        width: features of a token, even and a multiple of the heads.
        hidden: features within the two-layer networks.
        dropout: probability after the embeddings and after every residual branch.
    """
    check_least(1, vocabulary=vocabulary, context=context, layers=layers, hidden=hidden)
    check_heads(heads, width=width)
    check_even(width=width)
    check_fraction(dropout=dropout)
    return Transformer(vocabulary, context, layers, heads, width, hidden, dropout)
