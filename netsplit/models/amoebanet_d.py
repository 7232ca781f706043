"""AmoebaNet-D: evolved cells, each of which feeds the next two.

A cell takes the outputs of the two cells before it, so that every cut through the network severs
at least two edges, and chain-only pipelines cannot train it::

    images -> stem -+-> cell 0 -+-> cell 1 -+-> cell 2 ... -> pool -> logits
                    +-----------^-----------^
                      each cell reads its two predecessors

Within a cell, states 0 and 1 are those two inputs brought to the cell's width; each of five further
states is the sum of two operations on earlier states; the output concatenates some states.
Reduction cells halve the sides and double the width. The layout is that of the GPipe benchmark:
stem, two reduction cells, then three groups of ``num_layers / 3`` normal cells with a reduction
cell between the groups. 18 layers with 256 filters and 1000 classes are 122,470,120 parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from netsplit.errors import ConfigError
from netsplit.models.sizes import check_least

__all__ = ["AmoebaNetD", "amoebanet_d"]

Operation = Callable[[int, int], nn.Module]  # (channels, stride) -> module


def relu_conv_bn(
    in_channels: int, out_channels: int, kernel: tuple[int, int] = (1, 1), stride: int = 1
) -> list[nn.Module]:
    """The one convolution block of the network; an odd kernel keeps the sides at stride 1."""
    padding = (kernel[0] // 2, kernel[1] // 2)
    return [
        nn.ReLU(),
        nn.Conv2d(in_channels, out_channels, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(out_channels),
    ]


class FactorizedReduce(nn.Module):
    """Halves the sides: two strided 1x1 convolutions, one of them shifted by one pixel, side by side."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.even = nn.Conv2d(in_channels, out_channels // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(in_channels, out_channels - out_channels // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(x)
        shifted = pad(x, (-1, 1, -1, 1))
        return self.norm(torch.cat([self.even(x), self.odd(shifted)], dim=1))


def none(channels: int, stride: int) -> nn.Module:
    return nn.Identity() if stride == 1 else FactorizedReduce(channels, channels)


def avg_3x3(channels: int, stride: int) -> nn.Module:
    return nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)


def max_3x3(channels: int, stride: int) -> nn.Module:
    return nn.MaxPool2d(3, stride, padding=1)


def max_2x2(channels: int, stride: int) -> nn.Module:
    return nn.MaxPool2d(2, stride)


def conv_1x1(channels: int, stride: int) -> nn.Module:
    return nn.Sequential(*relu_conv_bn(channels, channels, stride=stride))


def conv_3x3(channels: int, stride: int) -> nn.Module:
    """A bottleneck of a quarter of the channels around a 3x3 convolution."""
    narrow = channels // 4
    return nn.Sequential(
        *relu_conv_bn(channels, narrow),
        *relu_conv_bn(narrow, narrow, (3, 3), stride),
        *relu_conv_bn(narrow, channels),
    )


def conv_1x7_7x1(channels: int, stride: int) -> nn.Module:
    """A bottleneck of a quarter of the channels around 1x7 and 7x1; used at stride 1 only."""
    assert stride == 1
    narrow = channels // 4
    return nn.Sequential(
        *relu_conv_bn(channels, narrow),
        *relu_conv_bn(narrow, narrow, (1, 7)),
        *relu_conv_bn(narrow, narrow, (7, 1)),
        *relu_conv_bn(narrow, channels),
    )


@dataclass(frozen=True)
class CellPlan:
    """`pairs[n]` are the two (state, operation) whose sum is state n + 2; `concat` are the output states."""

    pairs: tuple[tuple[tuple[int, Operation], tuple[int, Operation]], ...]
    concat: tuple[int, ...]


NORMAL = CellPlan(
    pairs=(
        ((1, conv_1x1), (1, max_3x3)),
        ((1, none), (0, conv_1x7_7x1)),
        ((0, conv_1x1), (0, conv_1x7_7x1)),
        ((2, max_3x3), (2, none)),
        ((1, avg_3x3), (5, conv_1x1)),
    ),
    concat=(0, 3, 4, 6),
)
REDUCTION = CellPlan(
    pairs=(
        ((0, max_2x2), (0, max_3x3)),
        ((2, none), (1, conv_3x3)),
        ((2, conv_1x7_7x1), (2, max_3x3)),
        ((3, none), (1, max_2x2)),
        ((2, avg_3x3), (3, conv_1x1)),
    ),
    concat=(4, 5, 6),
)


class Cell(nn.Module):
    """One cell: `previous` and `before` (the output of the cell before that) -> concatenated states."""

    def __init__(
        self, reduces: bool, previous_reduced: bool, channels: int, previous: int, before: int
    ) -> None:
        super().__init__()
        self.plan = REDUCTION if reduces else NORMAL
        self.adapt_previous = nn.Sequential(*relu_conv_bn(previous, channels))
        self.adapt_before: nn.Module = nn.Identity()
        if previous_reduced:
            self.adapt_before = FactorizedReduce(before, channels)
        elif before != channels:
            self.adapt_before = nn.Sequential(*relu_conv_bn(before, channels))
        self.operations = nn.ModuleList(
            operation(channels, 2 if reduces and state < 2 else 1)
            for pair in self.plan.pairs
            for state, operation in pair
        )

    def forward(self, previous: Tensor, before: Tensor) -> Tensor:
        states = [self.adapt_previous(previous), self.adapt_before(before)]
        for n, ((u, _), (v, _)) in enumerate(self.plan.pairs):
            left, right = self.operations[2 * n], self.operations[2 * n + 1]
            states.append(left(states[u]) + right(states[v]))
        return torch.cat([states[state] for state in self.plan.concat], dim=1)


class AmoebaNetD(nn.Module):
    """Images (batch, in_channels, height, width) -> logits (batch, num_classes)."""

    def __init__(
        self, num_classes: int, num_layers: int, num_filters: int, in_channels: int, small_images: bool
    ) -> None:
        super().__init__()
        channels = num_filters // 4
        stem_stride = 1 if small_images else 2
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, channels, 3, stem_stride, padding=1, bias=False), nn.BatchNorm2d(channels)
        )
        group = [False] * (num_layers // 3)
        before = previous = channels
        previous_reduced = False
        self.cells = nn.ModuleList()
        for reduces in [True, True, *group, True, *group, True, *group]:
            channels *= 2 if reduces else 1
            cell = Cell(reduces, previous_reduced, channels, previous, before)
            self.cells.append(cell)
            before, previous = previous, channels * len(cell.plan.concat)
            previous_reduced = reduces
        self.pool = nn.AdaptiveAvgPool2d(1) if small_images else nn.AvgPool2d(7)
        self.classify = nn.Linear(previous, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        before = previous = self.stem(images)
        for cell in self.cells:
            before, previous = previous, cell(previous, before)
        return self.classify(self.pool(previous).flatten(1))


def amoebanet_d(
    num_classes: int = 10,
    num_layers: int = 18,
    num_filters: int = 256,
    in_channels: int = 3,
    small_images: bool = False,
) -> nn.Module:
    """AmoebaNet-D with `num_layers` normal cells and `num_filters` / 4 channels after the stem.

    Without `small_images` the sides must be 224 pixels, as the head averages a 7x7 map. With it the
    stem keeps the sides and the head averages whatever is left, which is 2x2 of 32x32 pixels; sides
    must then be a multiple of 16. Cells and their connections are the same.

    Raises:
        ConfigError: a size that the layout does not allow.
    """
    if num_layers < 3 or num_layers % 3:
        raise ConfigError(
            f"model.num_layers is {num_layers}: give a positive multiple of 3, one third per group."
        )
    if num_filters < 8 or num_filters % 8:
        raise ConfigError(f"model.num_filters is {num_filters}: give a positive multiple of 8.")
    check_least(1, num_classes=num_classes, in_channels=in_channels)
    return AmoebaNetD(num_classes, num_layers, num_filters, in_channels, small_images)
