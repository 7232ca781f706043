"""GPT, BERT and the first Transformer, with the attention and the blocks that they share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from netsplit.errors import ConfigError
from netsplit.models.sizes import check_even, check_fraction, check_least

__all__ = ["TransformerBlock", "attend", "bert", "check_heads", "gpt", "transformer"]


def attend(
    query: Tensor, key: Tensor, value: Tensor, heads: int, *, causal: bool = False, dropout: float = 0.0
) -> Tensor:
    """Multi-head attention of (n, t, c) to (n, s, c): (n, t, c), before any projection.

    Vaswani et al., "Attention Is All You Need", NIPS 2017. With `causal` a token attends to itself and
    those before it. `dropout` is the probability that a token is not attended to.
    """
    q, k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (query, key, value))
    heads_out = scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=dropout)
    return heads_out.transpose(1, 2).flatten(2)


class TransformerBlock(nn.Module):
    """Attention and a two-layer network, each with a residual and a layer norm: (n, t, width) to the same.

    Norms come first in each (`norm_first`, as GPT-2 has them) or after the sum (as BERT has them).
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        causal: bool,
        norm_first: bool,
        dropout: float,
        gelu: Literal["none", "tanh"],
        eps: float,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.norm_first = norm_first
        self.norm1 = nn.LayerNorm(width, eps)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps)
        self.widen = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU(approximate=gelu)
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm_first:
            x = x + self._attention(self.norm1(x))
            return x + self._network(self.norm2(x))
        x = self.norm1(x + self._attention(x))
        return self.norm2(x + self._network(x))

    def _attention(self, x: Tensor) -> Tensor:
        dropout = self.dropout.p if self.training else 0.0
        query, key, value = self.qkv(x).chunk(3, dim=2)
        attended = attend(query, key, value, self.heads, causal=self.causal, dropout=dropout)
        return self.dropout(self.project(attended))

    def _network(self, x: Tensor) -> Tensor:
        return self.dropout(self.narrow(self.gelu(self.widen(x))))


@dataclass(frozen=True)
class Size:
    """The size of a transformer: blocks, heads of each, features of a token."""

    layers: int
    heads: int
    width: int


def size_of(
    named: Mapping[str, Size], name: str, layers: int | None, heads: int | None, width: int | None
) -> Size:
    """The named size, with every value that is not None replaced.

    Raises:
        ConfigError: an unknown name, or a width that the heads cannot share.
    """
    if name not in named:
        raise ConfigError(f"model.size is '{name}': give one of {', '.join(named)}.")
    given = {"layers": layers, "heads": heads, "width": width}
    size = replace(named[name], **{key: value for key, value in given.items() if value is not None})
    check_least(1, layers=size.layers)
    check_heads(size.heads, width=size.width)
    return size


def check_heads(heads: int, **widths: int) -> None:
    """Raises ConfigError: a width is not a positive multiple of the number of heads."""
    check_least(1, heads=heads, **widths)
    for name, value in widths.items():
        if value % heads:
            raise ConfigError(
                f"model.{name} is {value}, which {heads} heads cannot share: give a multiple of {heads}."
            )


def check_tokens(tokens: Tensor, context: int) -> None:
    """Raises ConfigError: samples of tokens (n, t) are longer than `context`."""
    if tokens.shape[1] > context:
        raise ConfigError(
            f"model.context is {context}, but a sample has {tokens.shape[1]} tokens: "
            f"give at least {tokens.shape[1]}."
        )


def initialise(model: nn.Module, std: float = 0.02) -> None:
    """Weights drawn as GPT-2 and BERT draw them: normal, biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


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

    Radford et al., "Language Models are Unsupervised Multitask Learners", 2019: norms before attention and
    network, a causal mask, scores by the same matrix that embeds the tokens.

    Args:
        context: the most tokens that a sample may have.
        width: features of a token, a multiple of the heads; None as `size` has them.
        dropout: probability after the embedding, in attention and after every residual branch.
        tied: score with the embedding's matrix, so first and last operator are on one device.
    """
    check_least(1, vocabulary=vocabulary, context=context)
    check_fraction(dropout=dropout)
    chosen = size_of(GPT_SIZES, size, layers, heads, width)
    return GPT(chosen, vocabulary=vocabulary, context=context, dropout=dropout, tied=tied)


BERT_SIZES = {"base": Size(layers=12, heads=12, width=768), "large": Size(layers=24, heads=16, width=1024)}
EPS = 1e-12


class BERTEncoder(nn.Module):
    """Tokens (n, t), int64, all of the first segment and none of padding -> features (n, t, width)."""

    def __init__(self, size: Size, *, vocabulary: int, context: int, dropout: float) -> None:
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocabulary, size.width)
        self.positions = nn.Embedding(context, size.width)
        self.segments = nn.Embedding(2, size.width)
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

    Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", NAACL
    2019, with its head for masked tokens, which scores with the embedding's matrix, and without the one for
    next sentences.

    Args:
        vocabulary: number of different tokens, the mask's own among them.
        context: the most tokens that a sample may have.
        width: features of a token, a multiple of the heads; None as `size` has them.
        dropout: probability after the embedding, in attention and after every residual branch.
    """
    check_least(1, vocabulary=vocabulary, context=context)
    check_fraction(dropout=dropout)
    chosen = size_of(BERT_SIZES, size, layers, heads, width)
    return BERT(chosen, vocabulary=vocabulary, context=context, dropout=dropout)


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

    Vaswani et al., "Attention Is All You Need", NIPS 2017. Both languages and the scores share one matrix, as
    in the paper; positions are its sines and cosines.

    Args:
        vocabulary: number of different tokens, of both languages together.
        context: the most tokens that a sample may have.
        layers: blocks of the encoder, and of the decoder.
        width: features of a token, even and a multiple of the heads.
        dropout: probability after the embeddings and after every residual branch.
    """
    check_least(1, vocabulary=vocabulary, context=context, layers=layers, hidden=hidden)
    check_heads(heads, width=width)
    check_even(width=width)
    check_fraction(dropout=dropout)
    return Transformer(vocabulary, context, layers, heads, width, hidden, dropout)
