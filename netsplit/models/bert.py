"""BERT: the tokens that were masked in a text, from those on both sides.

    tokens + positions + segment -> norm -> block -> block -> ... -> dense -> norm -> scores

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", NAACL
2019, with its head for masked tokens, which scores with the embedding's matrix. All tokens are of the
first segment, and none is padding. There is no next-sentence head.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from netsplit.models._sizes import check_fraction, check_least, check_tokens
from netsplit.models._transformer import Size, TransformerBlock, initialise, size_of

__all__ = ["BERT", "BERT_SIZES", "bert"]

BERT_SIZES = {"base": Size(layers=12, heads=12, width=768), "large": Size(layers=24, heads=16, width=1024)}
EPS = 1e-12
SEGMENTS = 2


class BERTEncoder(nn.Module):
    """Tokens (n, t), int64 -> features (n, t, width)."""

    def __init__(self, size: Size, *, vocabulary: int, context: int, dropout: float) -> None:
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocabulary, size.width)
        self.positions = nn.Embedding(context, size.width)
        self.segments = nn.Embedding(SEGMENTS, size.width)
        self.norm = nn.LayerNorm(size.width, EPS)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(
                size.width, size.heads, causal=False, norm_first=False, dropout=dropout, gelu="none", eps=EPS
            )
            for _ in range(size.layers)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        check_tokens(tokens, self.context)
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]] + self.segments.weight[0]
        x = self.dropout(self.norm(x))
        for block in self.blocks:
            x = block(x)
        return x


class BERT(nn.Module):
    """Tokens (n, t), int64 -> scores (n, vocabulary, t) of what stood at each place."""

    def __init__(self, size: Size, *, vocabulary: int, context: int, dropout: float) -> None:
        super().__init__()
        self.encoder = BERTEncoder(size, vocabulary=vocabulary, context=context, dropout=dropout)
        self.dense = nn.Linear(size.width, size.width)
        self.gelu = nn.GELU()
        self.norm = nn.LayerNorm(size.width, EPS)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        initialise(self)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.gelu(self.dense(self.encoder(tokens))))
        return linear(x, self.encoder.tokens.weight, self.bias).transpose(1, 2)


def bert(
    size: Literal["base", "large"] = "base",
    vocabulary: int = 30522,
    context: int = 512,
    layers: int | None = None,
    heads: int | None = None,
    width: int | None = None,
    dropout: float = 0.0,
) -> nn.Module:
    """BERT of a named size, or of any other. Targets that are -100 count for nothing in CrossEntropyLoss.

    Args:
        size: BERT's name of layers, heads and width.
        vocabulary: number of different tokens, the mask's own among them.
        context: the most tokens that a sample may have.
        layers: blocks; None as `size` has them.
        heads: of attention; None as `size` has them.
        width: features of a token, a multiple of the heads; None as `size` has them.
        dropout: probability after the embedding, in attention and after every residual branch.
    """
    check_least(1, vocabulary=vocabulary, context=context)
    check_fraction(dropout=dropout)
    chosen = size_of(BERT_SIZES, size, layers, heads, width)
    return BERT(chosen, vocabulary=vocabulary, context=context, dropout=dropout)
