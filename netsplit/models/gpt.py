"""GPT: the next token of a text, from all tokens so far.

    tokens + positions -> block -> block -> ... -> norm -> scores, with the tokens' own vectors

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (GPT-2): norms before
attention and network, a causal mask, scores by the same matrix that embeds the tokens.
"""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import linear

from netsplit.models._sizes import check_fraction, check_least, check_tokens
from netsplit.models._transformer import Size, TransformerBlock, initialise, size_of

__all__ = ["GPT", "GPT_SIZES", "gpt"]

GPT_SIZES = {
    "small": Size(layers=12, heads=12, width=768),
    "medium": Size(layers=24, heads=16, width=1024),
    "large": Size(layers=36, heads=20, width=1280),
}


class GPT(nn.Module):
    """Tokens (n, t), int64 -> scores (n, vocabulary, t) of the token that follows each."""

    def __init__(self, size: Size, *, vocabulary: int, context: int, dropout: float, tied: bool) -> None:
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocabulary, size.width)
        self.positions = nn.Embedding(context, size.width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(
                size.width, size.heads, causal=True, norm_first=True, dropout=dropout, gelu="tanh", eps=1e-5
            )
            for _ in range(size.layers)
        )
        self.norm = nn.LayerNorm(size.width)
        self.head = None if tied else nn.Linear(size.width, vocabulary, bias=False)
        initialise(self)
        # The residuals of all blocks add up: drawn narrower, their sum starts as one block's would.
        for name, parameter in self.named_parameters():
            if name.endswith(("project.weight", "narrow.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * size.layers))

    def forward(self, tokens: Tensor) -> Tensor:
        check_tokens(tokens, self.context)
        x = self.dropout(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        weight = self.tokens.weight if self.head is None else self.head.weight
        return linear(self.norm(x), weight).transpose(1, 2)


def gpt(
    size: Literal["small", "medium", "large"] = "small",
    vocabulary: int = 50257,
    context: int = 1024,
    layers: int | None = None,
    heads: int | None = None,
    width: int | None = None,
    dropout: float = 0.0,
    tied: bool = True,
) -> nn.Module:
    """GPT-2 of a named size, or of any other.

    Args:
        size: GPT-2's name of layers, heads and width.
        vocabulary: number of different tokens.
        context: tokens that it can look back on; a sample may have fewer.
        layers: blocks; None as `size` has them.
        heads: of attention; None as `size` has them.
        width: features of a token, a multiple of the heads; None as `size` has them.
        dropout: probability after the embedding, in attention and after every residual branch.
        tied: scores by the embedding's matrix, which keeps first and last operator on one device.
    """
    check_least(1, vocabulary=vocabulary, context=context)
    check_fraction(dropout=dropout)
    chosen = size_of(GPT_SIZES, size, layers, heads, width)
    return GPT(chosen, vocabulary=vocabulary, context=context, dropout=dropout, tied=tied)
