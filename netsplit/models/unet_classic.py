"""The U-Net as it was first drawn: two convolutions a level, four levels, skips joined on the way up.

Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI
2015. Two things differ: convolutions are padded, so that scores are as large as the image, and BatchNorm
may follow them. With `up` "bilinear" nothing is learnt on enlarging; the convolutions below halve the
channels instead, which makes the model little more than half as large.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from netsplit.models._sizes import check_even, check_least, check_sides

__all__ = ["UNetClassic", "Up", "double_conv", "unet_classic"]

Up = Literal["transposed", "bilinear"]


def double_conv(in_channels: int, mid: int, out: int, batch_norm: bool = True) -> nn.Sequential:
    """Two 3x3 convolutions that keep the sides, each with a ReLU; a BatchNorm makes their biases needless."""
    layers: list[nn.Module] = []
    for before, after in ((in_channels, mid), (mid, out)):
        layers.append(nn.Conv2d(before, after, 3, padding=1, bias=not batch_norm))
        if batch_norm:
            layers.append(nn.BatchNorm2d(after))
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class UNetClassic(nn.Module):
    """Images (batch, in_channels, height, width) -> scores (batch, num_classes, height, width)."""

    def __init__(
        self, num_classes: int, base_channels: int, depth: int, in_channels: int, batch_norm: bool, up: Up
    ) -> None:
        super().__init__()
        levels = [base_channels * 2**i for i in range(depth)]
        self.down = nn.ModuleList(
            double_conv(before, channels, channels, batch_norm)
            for before, channels in zip([in_channels, *levels], levels, strict=False)
        )
        # What enlarges without weights must get the channels of the level that it goes to.
        narrow = 2 if up == "bilinear" else 1
        self.bottom = double_conv(levels[-1], 2 * levels[-1], 2 * levels[-1] // narrow, batch_norm)
        self.enlarge = nn.ModuleList(
            nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=False)
            if up == "bilinear"
            else nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
            for channels in levels
        )
        self.up = nn.ModuleList(
            double_conv(2 * channels, channels, channels // (narrow if i else 1), batch_norm)
            for i, channels in enumerate(levels)
        )
        self.segment = nn.Conv2d(base_channels, num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        check_sides(images, len(self.down))
        x, skips = images, []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = max_pool2d(x, 2)
        x = self.bottom(x)
        for enlarge, up, skip in zip(reversed(self.enlarge), reversed(self.up), reversed(skips), strict=True):
            x = up(torch.cat([skip, enlarge(x)], dim=1))
        return self.segment(x)


def unet_classic(
    num_classes: int = 2,
    base_channels: int = 64,
    depth: int = 4,
    in_channels: int = 3,
    batch_norm: bool = True,
    up: Up = "transposed",
) -> nn.Module:
    """The classic U-Net; sides of the images must be multiples of 2^depth.

    Args:
        num_classes: scores a pixel.
        base_channels: channels of the first level; every level doubles them. An even number.
        depth: levels, not counting the bottom.
        in_channels: colour planes of an image.
        batch_norm: after every convolution; the paper has none.
        up: how maps are enlarged: by a learnt 2x2 convolution, as in the paper, or bilinearly.
    """
    check_least(1, num_classes=num_classes, depth=depth, in_channels=in_channels)
    check_even(base_channels=base_channels)
    return UNetClassic(num_classes, base_channels, depth, in_channels, batch_norm, up)
