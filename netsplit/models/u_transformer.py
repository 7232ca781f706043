"""U-Transformer: a U-Net whose bottom attends to itself, and whose skips are filtered by what lies below.

    skip S --------------------------------------+-> * --> cat -> convolutions -> Y of this level
       +-> halved -> value                       |         ^
                       v                         |         |
       +-> query, key -> attention -> sigmoid, enlarged    |
    Y of the level below ----------------------------- enlarged

Petit et al., "U-Net Transformer: Self and Cross Attention for Medical Image Segmentation", MLMI 2021.
Attention is over all places of a map, to which encodings of their row and column are added first.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from netsplit.errors import ConfigError
from netsplit.models._sizes import check_least
from netsplit.models._transformer import attend, check_heads
from netsplit.models.unet_classic import double_conv

__all__ = ["UTransformer", "u_transformer"]

LONGEST = 10_000.0  # longest wave of the encodings, in places and in units of 2 pi


class Positions(nn.Module):
    """Adds waves to maps (n, channels, side, side): half the channels tell the row, half the column."""

    rows: Tensor
    columns: Tensor

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        half = channels // 2
        rate = LONGEST ** (-torch.arange(0, half, 2) / half)
        angle = rate[:, None] * torch.arange(side)
        waves = torch.cat([angle.sin(), angle.cos()])
        self.register_buffer("rows", waves[:, :, None].clone())
        self.register_buffer("columns", waves[:, None, :].clone())

    def forward(self, x: Tensor) -> Tensor:
        side = self.rows.shape[1]
        rows, columns = self.rows.expand(-1, -1, side), self.columns.expand(-1, side, -1)
        return x + torch.cat([rows, columns])


def places(x: Tensor) -> Tensor:
    """Maps (n, c, h, w) as tokens (n, h * w, c)."""
    return x.flatten(2).transpose(1, 2)


class SelfAttention(nn.Module):
    """Maps (n, channels, side, side) -> the same shape, every place from all places."""

    def __init__(self, channels: int, side: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.positions = Positions(channels, side)
        self.qkv = nn.Linear(channels, 3 * channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(places(self.positions(x))).chunk(3, dim=2)
        return attend(query, key, value, self.heads).transpose(1, 2).unflatten(2, x.shape[2:])


class CrossAttention(nn.Module):
    """Skip (n, c, 2s, 2s), maps below (n, 2c, s, s) -> the skip, each value times a weight in (0, 1)."""

    def __init__(self, channels: int, side: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.skip_positions = Positions(channels, side)
        self.below_positions = Positions(2 * channels, side // 2)
        self.from_skip = projection(channels, channels)
        self.from_below = projection(2 * channels, channels)
        self.query_key = nn.Linear(channels, 2 * channels, bias=False)
        self.value = nn.Linear(channels, channels, bias=False)
        self.weigh = nn.Sequential(nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, skip: Tensor, below: Tensor) -> Tensor:
        query, key = self.query_key(places(self.from_below(self.below_positions(below)))).chunk(2, dim=2)
        value = self.value(places(max_pool2d(self.from_skip(self.skip_positions(skip)), 2)))
        attended = attend(query, key, value, self.heads).transpose(1, 2).unflatten(2, below.shape[2:])
        weights = interpolate(self.weigh(attended), scale_factor=2.0, mode="bilinear", align_corners=False)
        return skip * torch.sigmoid(weights)


def projection(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class UTransformer(nn.Module):
    """Images (batch, in_channels, side, side) -> scores (batch, num_classes, side, side)."""

    def __init__(
        self, num_classes: int, image_size: int, base_channels: int, depth: int, heads: int, in_channels: int
    ) -> None:
        super().__init__()
        self.image_size = image_size
        levels = [base_channels * 2**i for i in range(depth)]
        self.down = nn.ModuleList(
            double_conv(before, channels, channels)
            for before, channels in zip([in_channels, *levels], levels, strict=False)
        )
        self.bottom = double_conv(levels[-1], 2 * levels[-1], 2 * levels[-1])
        self.attention = SelfAttention(2 * levels[-1], image_size >> depth, heads)
        self.filters = nn.ModuleList(
            CrossAttention(channels, image_size >> i, heads) for i, channels in enumerate(levels)
        )
        self.enlarge = nn.ModuleList(
            nn.ConvTranspose2d(2 * channels, channels, 2, stride=2) for channels in levels
        )
        self.up = nn.ModuleList(double_conv(2 * channels, channels, channels) for channels in levels)
        self.segment = nn.Conv2d(base_channels, num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        if tuple(images.shape[2:]) != (self.image_size, self.image_size):
            raise ConfigError(
                f"model.image_size is {self.image_size}, but images have "
                f"{images.shape[2]}x{images.shape[3]} pixels: give one the other's size."
            )
        x, skips = images, []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = max_pool2d(x, 2)
        x = self.attention(self.bottom(x))
        for i in reversed(range(len(skips))):
            filtered = self.filters[i](skips[i], x)
            x = self.up[i](torch.cat([filtered, self.enlarge[i](x)], dim=1))
        return self.segment(x)


def u_transformer(
    num_classes: int = 2,
    image_size: int = 256,
    base_channels: int = 64,
    depth: int = 4,
    heads: int = 4,
    in_channels: int = 3,
) -> nn.Module:
    """The U-Transformer, with attention at the bottom and in every skip.

    Args:
        num_classes: scores a pixel.
        image_size: pixels a side, a multiple of 2^depth; attention of the first level is over a quarter
            of all pixels, to the square.
        base_channels: channels of the first level; every level doubles them. A multiple of 4 and of `heads`.
        depth: levels, not counting the bottom.
        heads: of every attention.
        in_channels: colour planes of an image.
    """
    check_least(1, num_classes=num_classes, depth=depth, in_channels=in_channels)
    check_heads(heads, base_channels=base_channels)
    if base_channels % 4:
        raise ConfigError(f"model.base_channels is {base_channels}: give a multiple of 4.")
    if image_size < 2**depth or image_size % 2**depth:
        raise ConfigError(
            f"model.image_size is {image_size}: give a multiple of {2**depth}, to halve {depth} times."
        )
    return UTransformer(num_classes, image_size, base_channels, depth, heads, in_channels)
