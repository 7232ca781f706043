"""The U-Net of the pipeline benchmarks: any number of convolutions a level, instance norms, long skips.

    images -> down 0 ------------------------------> cat -> up 0 -> 1x1 -> scores
                 +-> down 1 ---------------> cat -> up 1 --^
                        +-> ... -> bottom ----^

What a level finds on the way down waits until the way up has come back to it: of all levels these skips
cross every cut between them. The layout is that of the torchgpipe benchmarks (Kim et al., "torchgpipe:
On-the-fly Pipeline Parallelism for Training Giant Models", 2020), which name a model by (convolutions a
level, channels of the first level).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from netsplit.models._sizes import check_even, check_fraction, check_least, check_sides

__all__ = ["UNet", "unet"]


def stack(in_channels: int, mid: int, out: int, num_convs: int, dropout: float) -> nn.Sequential:
    """`num_convs` 3x3 convolutions, each with dropout, instance norm and leaky ReLU."""
    widths = [in_channels, *[mid] * (num_convs - 1), out]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.Dropout2d(dropout),
            nn.InstanceNorm2d(after),
            nn.LeakyReLU(),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Images (batch, in_channels, height, width) -> scores (batch, num_classes, height, width)."""

    def __init__(
        self,
        num_classes: int,
        num_convs: int,
        base_channels: int,
        depth: int,
        in_channels: int,
        dropout: float,
    ) -> None:
        super().__init__()
        levels = [base_channels * 2**i for i in range(depth)]
        self.down = nn.ModuleList(
            stack(before, channels, channels, num_convs, dropout)
            for before, channels in zip([in_channels, *levels], levels, strict=False)
        )
        self.bottom = stack(levels[-1], 2 * levels[-1], levels[-1], num_convs, dropout)
        self.up = nn.ModuleList(
            stack(2 * channels, channels // 2, channels // 2, num_convs, dropout) for channels in levels
        )
        self.segment = nn.Conv2d(base_channels // 2, num_classes, 1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        check_sides(images, len(self.down))
        x, skips = images, []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = max_pool2d(x, 2)
        x = self.bottom(x)
        for up, skip in zip(reversed(self.up), reversed(skips), strict=True):
            x = up(torch.cat([interpolate(x, scale_factor=2.0), skip], dim=1))
        return self.segment(x)


def unet(
    num_classes: int = 1,
    num_convs: int = 5,
    base_channels: int = 64,
    depth: int = 5,
    in_channels: int = 3,
    dropout: float = 0.1,
) -> nn.Module:
    """The benchmarks' U-Net; sides of the images must be multiples of 2^depth, and more than 2^depth.

    Args:
        num_classes: scores a pixel; the benchmarks have 1.
        num_convs: convolutions of each level, on the way down and on the way up.
        base_channels: channels of the first level; every level doubles them. An even number.
        depth: levels, not counting the bottom.
        in_channels: colour planes of an image.
        dropout: probability that a whole map is left out, after every convolution.
    """
    check_least(1, num_classes=num_classes, num_convs=num_convs, depth=depth, in_channels=in_channels)
    check_even(base_channels=base_channels)
    check_fraction(dropout=dropout)
    return UNet(num_classes, num_convs, base_channels, depth, in_channels, dropout)
