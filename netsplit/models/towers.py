"""Towers: a chain of layers of its own for each input, what they make added up, or side by side through more.

    x0 ─► tower ─┐                          dose ───────────┐
                 + ─► scores      or        x1 ─► tower ─► cat ─► top ─► scores
    x1 ─► tower ─┘                          x2 ─► tower ────┘

The first is the wide MLP of Unity's evaluation (Unger et al., OSDI 2022), the second CANDLE's Uno, which
predicts from a cell and two drugs how a tumour grows: with a tower for each input, as evaluated there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal

import torch
from torch import Tensor, nn

from netsplit.errors import ConfigError
from netsplit.models._sizes import check_least
from netsplit.models.dlrm import layers_of

__all__ = ["Towers", "towers"]


class Towers(nn.Module):
    """Inputs (n, size), one for each of `inputs` -> scores (n, classes); single numbers have no tower."""

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
    """Towers; the defaults are the MLP of Unity's evaluation.

    Args:
        num_classes: scores a sample.
        inputs: the size of each.
        tower: of the layers of each tower.
        joined: sum: a last layer of each tower scores, and scores are added up; cat: what towers make goes
            side by side through `top` and a last layer.
        top: of layers, for cat.
        bias: of all layers.
    """
    check_least(1, num_classes=num_classes, inputs=min(inputs, default=0), tower=min(tower, default=0))
    check_least(1, top=min(top, default=1))
    if joined == "sum" and top:
        raise ConfigError(f"model.top is {list(top)}, which sums have none of: give [] or model.joined=cat.")
    return Towers(inputs, tower, None if joined == "sum" else top, num_classes, bias)
