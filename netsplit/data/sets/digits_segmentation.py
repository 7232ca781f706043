"""Pictures of several real handwritten digits, each pixel with its class: made on the spot, no download."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from netsplit.data.dataset import Data, readable
from netsplit.data.draw import Generated
from netsplit.data.keys import at_least
from netsplit.data.sets.digits import digits_split
from netsplit.errors import ConfigError

__all__ = ["digits_segmentation"]

CLASSES = ("background", *"0123456789")
INK = 0.3  # a pixel as dark as this belongs to the digit
MEAN, STD = 0.1, 0.25  # about those of the default pictures


@readable
def digits_segmentation(
    image_size: int = 64,
    digit_size: int = 20,
    digits_per_image: int = 4,
    channels: int = 3,
    train: int = 1024,
    test: int = 256,
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """Float32 pictures (channels, image_size, image_size) of digits at random places, grey repeated.

    Targets are masks (image_size, image_size) int64: 0 is background, 1 to 10 are the digits 0 to 9; where
    digits overlap, the later one is seen. The digits of the test half are in no training picture: it is
    scikit-learn's digits that are split.

    Args:
        digit_size: pixels a side of a digit, scaled up from 8.
        train, test: pictures in each half; they are drawn when asked for, so that any number costs nothing.
        limit: at most so many of each half.
        seed: with the index of a picture, it fixes which digits are in it, and where.

    Raises:
        ConfigError: a number cannot be used.
    """
    at_least(8, digit_size=digit_size)
    at_least(1, digits_per_image=digits_per_image, channels=channels, train=train, test=test)
    if image_size < digit_size:
        raise ConfigError(
            f"dataset.image_size is {image_size}: give at least dataset.digit_size, {digit_size}."
        )
    images, targets, *halves = digits_split(digit_size, seed)
    sets = []
    for half, (own, count) in enumerate(zip(halves, (train, test), strict=True)):
        make = _Pictures(images[own, 0], targets[own], image_size, digits_per_image, channels)
        sets.append(Generated(make, min(count, limit or count), seed, half))
    return Data("digits_segmentation", sets[0], sets[1], len(CLASSES), CLASSES, metric="mean_iou")


@dataclass(frozen=True, eq=False)
class _Pictures:
    digits: Tensor  # (n, digit_size, digit_size) between 0 and 1
    targets: Tensor  # (n,)
    size: int
    per_image: int
    channels: int

    def __call__(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Picture (channels, size, size) and mask (size, size)."""
        image, mask = torch.zeros(self.size, self.size), torch.zeros(self.size, self.size, dtype=torch.int64)
        side = self.digits.shape[-1]
        for one in rng.integers(len(self.digits), size=self.per_image):
            top, left = rng.integers(self.size - side + 1, size=2)
            place = slice(top, top + side), slice(left, left + side)
            ink = self.digits[one] >= INK
            image[place] = torch.where(ink, self.digits[one], image[place])
            mask[place] = torch.where(ink, self.targets[one] + 1, mask[place])
        return ((image - MEAN) / STD).expand(self.channels, -1, -1).contiguous(), mask
