"""Attention and transformer blocks, which the models of language and the U-Transformer share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from netsplit.errors import ConfigError
from netsplit.models._sizes import check_least

__all__ = ["Size", "TransformerBlock", "attend", "check_heads", "initialise", "size_of"]


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
    """The size of that name, with what is not None in place of its own.

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
    """Every width is a positive multiple of the number of heads.

    Raises:
        ConfigError: the first that is not.
    """
    check_least(1, heads=heads, **widths)
    for name, value in widths.items():
        if value % heads:
            raise ConfigError(
                f"model.{name} is {value}, which {heads} heads cannot share: give a multiple of {heads}."
            )


def initialise(model: nn.Module, std: float = 0.02) -> None:
    """Weights drawn as GPT-2 and BERT draw them: normal, biases zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
