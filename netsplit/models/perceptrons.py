"""Networks of linear layers: DLRM, which looks categories up in wide tables, and a tower for each input."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from netsplit.errors import ConfigError
from netsplit.models.sizes import check_least

__all__ = ["DLRM", "dlrm", "towers"]


class DLRM(nn.Module):
    """Numbers (n, k), if it has a bottom, and categories (n, tables, bag), int64 -> scores (n, classes).

    numbers ─────► bottom ──┐
    categories ─┬─► table ─┼─► cat ─► top ─► scores
                └─► table ─┘
    """

    def __init__(self, tables: Sequence[int], width: int, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        self.bottom = layers_of(bottom, ends=False)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for rows in tables)
        self.top = layers_of([len(tables) * width + (bottom[-1] if bottom else 0), *top])

    def forward(self, *inputs: Tensor) -> Tensor:
        looked_up = [table(each) for table, each in zip(self.tables, inputs[-1].unbind(1), strict=True)]
        return self.top(torch.cat([*map(self.bottom, inputs[:-1]), *looked_up], 1))


def layers_of(sizes: Sequence[int], bias: bool = True, ends: bool = True) -> nn.Sequential:
    """Linear layers from size to size, each followed by a ReLU, but for the last if the network `ends`."""
    layers: list[nn.Module] = []
    for before, size in pairwise(sizes):
        layers += [nn.Linear(before, size, bias=bias), nn.ReLU()]
    return nn.Sequential(*(layers[:-1] if ends else layers))


def dlrm(
    num_classes: int = 2,
    tables: tuple[int, ...] = (1_000_000,) * 4,
    width: int = 64,
    bottom: tuple[int, ...] = (4, 64, 64),
    top: tuple[int, ...] = (64,),
) -> nn.Module:
    """A DLRM; the defaults are those of Unity's evaluation.

    Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019,
    with the concatenation as interaction. Without a bottom it is XDL's model (Jiang et al., DLP-KDD 2019).

    Args:
        tables: rows of each table.
        bottom: numbers in a sample, then sizes of the layers for them; () for none.
        top: sizes of the layers before the last one.
    """
    check_least(1, num_classes=num_classes, width=width, tables=min(tables, default=0))
    check_least(1, bottom=min(bottom, default=1), top=min(top, default=1))
    return DLRM(tables, width, bottom, (*top, num_classes))


class Towers(nn.Module):
    """Inputs (n, size), one for each of `inputs` -> scores (n, classes); single numbers have no tower.

    x0 ─► tower ─┐                          dose ───────────┐
                 + ─► scores      or        x1 ─► tower ─► cat ─► top ─► scores
    x1 ─► tower ─┘                          x2 ─► tower ────┘
    """

    def __init__(
        self, inputs: Sequence[int], tower: Sequence[int], top: Sequence[int] | None, classes: int, bias: bool
    ) -> None:
        super().__init__()
        added = top is None
        own = [*tower, classes] if added else tower
        chains = [layers_of([size, *own] if size > 1 or added else [], bias, added) for size in inputs]
        self.towers = nn.ModuleList(chains)
        width = sum(tower[-1] if size > 1 else 1 for size in inputs)
        self.top = None if top is None else layers_of([width, *top, classes], bias)

    def forward(self, *inputs: Tensor) -> Tensor:
        features = [tower(x) for tower, x in zip(self.towers, inputs, strict=True)]
        return reduce(torch.add, features) if self.top is None else self.top(torch.cat(features, 1))


def towers(
    num_classes: int = 8192,
    inputs: tuple[int, ...] = (1024, 1024),
    tower: tuple[int, ...] = (8192,) * 7,
    joined: Literal["sum", "cat"] = "sum",
    top: tuple[int, ...] = (),
    bias: bool = False,
) -> nn.Module:
    """Towers; the defaults are the MLP of Unity's evaluation (Unger et al., OSDI 2022).

    With ``joined=cat`` they are CANDLE's Uno, which predicts tumour growth from a cell and two drugs.

    Args:
        inputs: size of each input.
        tower: sizes of each tower's layers.
        joined: sum: each tower ends in scores, which are added; cat: features are concatenated and go
            through `top` and a last layer.
    """
    check_least(1, num_classes=num_classes, inputs=min(inputs, default=0), tower=min(tower, default=0))
    check_least(1, top=min(top, default=1))
    if joined == "sum" and top:
        raise ConfigError(
            f"model.top is {list(top)}, but summed features have no top: give [] or model.joined=cat."
        )
    return Towers(inputs, tower, None if joined == "sum" else top, num_classes, bias)
