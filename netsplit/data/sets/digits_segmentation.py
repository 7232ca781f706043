"""Pictures of several real handwritten digits, each pixel with its class: made on the spot, no download."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from netsplit.data.dataset import Data
from netsplit.data.draw import generator_of
from netsplit.data.keys import ReadBy, at_least, check_common
from netsplit.data.sets.digits import digits_split
from netsplit.errors import ConfigError

__all__ = ["digits_segmentation"]

CLASSES = ("background", *"0123456789")
INK = 0.3  # a pixel as dark as this belongs to the digit
MEAN, STD = 0.1, 0.25  # about those of the default pictures


def digits_segmentation(
    image_size: int = 64,
    digit_size: int = 20,
    digits_per_image: int = 4,
    channels: int = 3,
    train: int = 1024,
    test: int = 256,
    limit: int | None = None,
    workers: int = 0,
    prefetch: int = 2,
    seed: int = 0,
    read_by: ReadBy = "auto",
) -> Data:
    """Float32 pictures (channels, image_size, image_size) of digits at random places, grey repeated.

    Targets are masks (image_size, image_size) int64: 0 is background, 1 to 10 are the digits 0 to 9; where
    digits overlap, the later one is seen. The digits of the test half are in no training picture: it is
    scikit-learn's digits that are split.

    Args:
        digit_size: pixels a side of a digit, scaled up from 8.
        train: pictures in the training half; they are drawn when asked for, so that any number costs nothing.
        test: pictures in the test half.
        limit: at most so many of each half.
        seed: with the index of a picture, it fixes which digits are in it, and where.

    Raises:
        ConfigError: a number cannot be used.
    """
    at_least(8, digit_size=digit_size)
    at_least(1, digits_per_image=digits_per_image, channels=channels, train=train, test=test)
    check_common(limit, workers, prefetch, seed)
    if image_size < digit_size:
        raise ConfigError(
            f"dataset.image_size is {image_size}: give at least dataset.digit_size, {digit_size}."
        )
    images, targets, *indices = digits_split(digit_size, seed)
    first, second = (
        _Pictures(
            images[own, 0], targets[own], image_size, digits_per_image, channels,
            count if limit is None else min(count, limit), (seed, half),
        )
        for half, (own, count) in enumerate(zip(map(torch.from_numpy, indices), (train, test), strict=True))
    )  # fmt: skip
    return Data(
        "digits_segmentation", first, second, len(CLASSES), CLASSES, workers=workers, prefetch=prefetch,
        read_by=read_by, metric="mean_iou",
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Pictures:
    digits: Tensor  # (n, digit_size, digit_size) between 0 and 1
    targets: Tensor  # (n,)
    size: int
    per_image: int
    channels: int
    count: int
    key: tuple[int, int]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> tuple[Tensor, Tensor]:
        """Picture (channels, size, size) and mask (size, size)."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        rng = generator_of(*self.key, index)
        image, mask = torch.zeros(self.size, self.size), torch.zeros(self.size, self.size, dtype=torch.int64)
        side = self.digits.shape[-1]
        for one in rng.integers(len(self.digits), size=self.per_image):
            top, left = rng.integers(self.size - side + 1, size=2)
            place = slice(top, top + side), slice(left, left + side)
            ink = self.digits[one] >= INK
            image[place] = torch.where(ink, self.digits[one], image[place])
            mask[place] = torch.where(ink, self.targets[one] + 1, mask[place])
        return ((image - MEAN) / STD).expand(self.channels, -1, -1).contiguous(), mask
