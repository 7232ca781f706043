"""DLRM: what a user will do, from a few numbers and from categories that are looked up in wide tables.

    numbers (n, k) ───────────► bottom ──┐
    categories (n, tables, bag) ─┬─► table ─┼─► cat ─► top ─► scores
                                 └─► table ─┘

Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019, with
the concatenation as interaction. Without a bottom it is XDL's model (Jiang et al., DLP-KDD 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from netsplit.models._sizes import check_least

__all__ = ["DLRM", "dlrm", "layers_of"]


class DLRM(nn.Module):
    """Categories (n, tables, bag), int64, before which numbers (n, k) if it has a bottom -> scores
    (n, classes)."""

    def __init__(self, tables: Sequence[int], width: int, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        self.bottom = layers_of(bottom, ends=False)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for rows in tables)
        self.top = layers_of([len(tables) * width + (bottom[-1] if bottom else 0), *top])

    def forward(self, *inputs: Tensor) -> Tensor:
        looked_up = [table(each) for table, each in zip(self.tables, inputs[-1].unbind(1), strict=True)]
        return self.top(torch.cat([*map(self.bottom, inputs[:-1]), *looked_up], 1))


def layers_of(sizes: Sequence[int], bias: bool = True, ends: bool = True) -> nn.Sequential:
    """Linear layers from size to size, each with a ReLU behind it: without that behind the last, if the
    network ends there."""
    layers: list[nn.Module] = []
    for given, size in pairwise(sizes):
        layers += [nn.Linear(given, size, bias=bias), nn.ReLU()]
    return nn.Sequential(*(layers[:-1] if ends else layers))


def dlrm(
    num_classes: int = 2,
    tables: tuple[int, ...] = (1_000_000,) * 4,
    width: int = 64,
    bottom: tuple[int, ...] = (4, 64, 64),
    top: tuple[int, ...] = (64,),
) -> nn.Module:
    """A DLRM; the defaults are those of Unity's evaluation.

    Args:
        num_classes: scores a sample.
        tables: rows of each table.
        width: of what is looked up.
        bottom: how many numbers a sample has, and the sizes of the layers that they go through; () for none.
        top: sizes of the layers before the last one.
    """
    check_least(1, num_classes=num_classes, width=width, tables=min(tables, default=0))
    check_least(1, bottom=min(bottom, default=1), top=min(top, default=1))
    return DLRM(tables, width, bottom, (*top, num_classes))
