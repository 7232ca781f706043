"""U-Nets: a level keeps its maps on the way down until the way up returns to it.

    images -> down 0 ------------------------------> cat -> up 0 -> 1x1 -> scores
                 +-> down 1 ---------------> cat -> up 1 --^
                        +-> ... -> bottom ----^

These skips cross every cut between their levels.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from netsplit.errors import ConfigError
from netsplit.models.sizes import check_even, check_fraction, check_least
from netsplit.models.transformers import attend, check_heads

__all__ = ["u_transformer", "unet", "unet_classic"]

LONGEST = 10_000.0  # longest wave of the U-Transformer's encodings, in places and in units of 2 pi


class UNetBase(nn.Module):
    """Images (batch, in_channels, height, width) -> scores (batch, num_classes, height, width).

    Models set `bottom`, `up` and `segment`; `join` says what a level's `up` is given.
    """

    bottom: nn.Module
    up: nn.ModuleList
    segment: nn.Module

    def __init__(self, down: list[nn.Sequential]) -> None:
        super().__init__()
        self.down = nn.ModuleList(down)

    def join(self, level: int, skip: Tensor, below: Tensor) -> Tensor:
        """Skip (n, c, 2h, 2w) and maps of the level below (n, ..., h, w), as one (n, ..., 2h, 2w)."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        if height % 2 ** len(self.down) or width % 2 ** len(self.down):
            raise ConfigError(
                f"model.depth is {len(self.down)}, but images of {height}x{width} pixels cannot be halved "
                f"that often: give sides that are multiples of {2 ** len(self.down)}."
            )
        x, skips = images, []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = max_pool2d(x, 2)
        x = self.bottom(x)
        for level in reversed(range(len(skips))):
            x = self.up[level](self.join(level, skips[level], x))
        return self.segment(x)


class UNet(UNetBase):
    """Any number of convolutions a level, each with dropout, instance norm and leaky ReLU."""

    def __init__(
        self,
        num_classes: int,
        num_convs: int,
        base_channels: int,
        depth: int,
        in_channels: int,
        dropout: float,
    ) -> None:
        def stack(before: int, mid: int, out: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for own, after in pairwise([before, *[mid] * (num_convs - 1), out]):
                convolution = nn.Conv2d(own, after, 3, padding=1, bias=False)
                layers += [convolution, nn.Dropout2d(dropout), nn.InstanceNorm2d(after), nn.LeakyReLU()]
            return nn.Sequential(*layers)

        levels = [base_channels * 2**i for i in range(depth)]
        super().__init__([stack(before, own, own) for before, own in pairwise([in_channels, *levels])])
        self.bottom = stack(levels[-1], 2 * levels[-1], levels[-1])
        self.up = nn.ModuleList(stack(2 * own, own // 2, own // 2) for own in levels)
        self.segment = nn.Conv2d(base_channels // 2, num_classes, 1, bias=False)

    def join(self, level: int, skip: Tensor, below: Tensor) -> Tensor:
        return torch.cat([interpolate(below, scale_factor=2.0), skip], dim=1)


def unet(
    num_classes: int = 1,
    num_convs: int = 5,
    base_channels: int = 64,
    depth: int = 5,
    in_channels: int = 3,
    dropout: float = 0.1,
) -> nn.Module:
    """The U-Net of the pipeline benchmarks; sides of the images must be multiples of 2^depth, and more.

    The layout is that of the torchgpipe benchmarks (Kim et al., "torchgpipe: On-the-fly Pipeline Parallelism
    for Training Giant Models", 2020), which name a model by (convolutions a level, channels of the first).

    Args:
        num_classes: scores a pixel; the benchmarks have 1.
        num_convs: convolutions of each level, on the way down and on the way up.
        base_channels: channels of the first level; every level doubles them. An even number.
        dropout: probability that a whole map is left out, after every convolution.
    """
    check_least(1, num_classes=num_classes, num_convs=num_convs, depth=depth, in_channels=in_channels)
    check_even(base_channels=base_channels)
    check_fraction(dropout=dropout)
    return UNet(num_classes, num_convs, base_channels, depth, in_channels, dropout)


Up = Literal["transposed", "bilinear"]


def double_conv(in_channels: int, mid: int, out: int, batch_norm: bool = True) -> nn.Sequential:
    """Two 3x3 convolutions that keep the sides, each with a ReLU; a BatchNorm makes their biases needless."""
    layers: list[nn.Module] = []
    for before, after in ((in_channels, mid), (mid, out)):
        layers.append(nn.Conv2d(before, after, 3, padding=1, bias=not batch_norm))
        layers += [nn.BatchNorm2d(after)] * batch_norm
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class UNetClassic(UNetBase):
    """Two convolutions a level.

    Bilinear upsampling has no parameters; convolutions halve the channels instead, which makes the model
    little more than half as large.
    """

    def __init__(
        self, num_classes: int, base_channels: int, depth: int, in_channels: int, batch_norm: bool, up: Up
    ) -> None:
        levels = [base_channels * 2**i for i in range(depth)]
        super().__init__(
            [double_conv(before, own, own, batch_norm) for before, own in pairwise([in_channels, *levels])]
        )
        narrow = 2 if up == "bilinear" else 1
        self.bottom = double_conv(levels[-1], 2 * levels[-1], 2 * levels[-1] // narrow, batch_norm)
        self.enlarge = nn.ModuleList(
            nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=False)
            if up == "bilinear"
            else nn.ConvTranspose2d(2 * own, own, 2, stride=2)
            for own in levels
        )
        self.up = nn.ModuleList(
            double_conv(2 * own, own, own // (narrow if i else 1), batch_norm) for i, own in enumerate(levels)
        )
        self.segment = nn.Conv2d(base_channels, num_classes, 1)

    def join(self, level: int, skip: Tensor, below: Tensor) -> Tensor:
        return torch.cat([skip, self.enlarge[level](below)], dim=1)


def unet_classic(
    num_classes: int = 2,
    base_channels: int = 64,
    depth: int = 4,
    in_channels: int = 3,
    batch_norm: bool = True,
    up: Up = "transposed",
) -> nn.Module:
    """The original U-Net; sides of the images must be multiples of 2^depth.

    Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI
    2015; here convolutions are padded, so that scores are as large as the image.

    Args:
        base_channels: channels of the first level; every level doubles them. An even number.
        batch_norm: after every convolution; the paper has none.
        up: how maps are enlarged: by a learnt 2x2 convolution, as in the paper, or bilinearly.
    """
    check_least(1, num_classes=num_classes, depth=depth, in_channels=in_channels)
    check_even(base_channels=base_channels)
    return UNetClassic(num_classes, base_channels, depth, in_channels, batch_norm, up)


class Positions(nn.Module):
    """Adds waves to maps (n, channels, side, side): half the channels encode the row, half the column."""

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
    """Skip (n, c, 2s, 2s), maps below (n, 2c, s, s) -> the skip, each value times a weight in (0, 1).

    skip ─+────────────────────────────────────────────────+─► *
          +─► halved ─► value ─► attention ─► sigmoid, enlarged
    below ────► query, key ────────^
    """

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
    convolution = nn.Conv2d(in_channels, out_channels, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))


class UTransformer(UNetClassic):
    """A classic U-Net with self-attention at the bottom, and skips filtered by the level below."""

    def __init__(
        self, num_classes: int, image_size: int, base_channels: int, depth: int, heads: int, in_channels: int
    ) -> None:
        super().__init__(num_classes, base_channels, depth, in_channels, batch_norm=True, up="transposed")
        widest = base_channels * 2**depth
        self.bottom = nn.Sequential(self.bottom, SelfAttention(widest, image_size >> depth, heads))
        self.filters = nn.ModuleList(
            CrossAttention(base_channels * 2**i, image_size >> i, heads) for i in range(depth)
        )

    def join(self, level: int, skip: Tensor, below: Tensor) -> Tensor:
        return super().join(level, self.filters[level](skip, below), below)


def u_transformer(
    num_classes: int = 2,
    image_size: int = 256,
    base_channels: int = 64,
    depth: int = 4,
    heads: int = 4,
    in_channels: int = 3,
) -> nn.Module:
    """The U-Transformer, with attention at the bottom and in every skip, over all places of a map.

    Petit et al., "U-Net Transformer: Self and Cross Attention for Medical Image Segmentation", MLMI 2021.

    Args:
        image_size: pixels a side, a multiple of 2^depth; attention at the first level costs the square of a
            quarter of the pixels.
        base_channels: channels of the first level; every level doubles them. A multiple of 4 and of `heads`.
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
