"""Handwritten digits of scikit-learn, 1,797 images of 8x8: alone, or several in a picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import TensorDataset

from netsplit.data.dataset import Data, Generated
from netsplit.data.keys import at_least
from netsplit.errors import ConfigError

__all__ = ["digits", "digits_segmentation", "digits_split"]

CLASSES = ("background", *"0123456789")
INK = 0.3  # a pixel at least this dark belongs to the digit
MEAN, STD = 0.1, 0.25  # roughly those of the default pictures


def digits(image_size: int = 32, channels: int = 3, limit: int | None = None, seed: int = 0) -> Data:
    """Digits as float32 images (channels, image_size, image_size), scaled bilinearly, grey repeated.

    A fifth is the test half; the split is stratified by class and fixed by `seed`. The train half has
    mean 0 and standard deviation 1. `limit` is the most samples of each half, for quick trials.

    Raises:
        ConfigError: a size, a number of channels or a limit below what can be used.
    """
    at_least(8, image_size=image_size)
    at_least(1, channels=channels, limit=limit)
    images, targets, *halves = digits_split(image_size, seed)
    images = (images - images[halves[0]].mean()) / images[halves[0]].std()
    chosen = (indices[:limit] for indices in halves)
    train, test = (
        TensorDataset(images[own].expand(-1, channels, -1, -1).contiguous(), targets[own]) for own in chosen
    )
    return Data("digits", train, test, 10, tuple("0123456789"))


def digits_split(image_size: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All digits, and the indices of train and test half.

    Returns:
        images (1797, 1, image_size, image_size) between 0 and 1, scaled bilinearly; classes (1797,) int64;
        the indices of the two halves, shuffled.
    """
    from sklearn.datasets import load_digits  # slow to import
    from sklearn.model_selection import train_test_split

    raw = load_digits()
    train, test = train_test_split(
        np.arange(len(raw.target)), test_size=0.2, stratify=raw.target, random_state=seed
    )
    images = torch.from_numpy(raw.images.astype(np.float32) / 16)[:, None]
    images = interpolate(images, size=(image_size, image_size), mode="bilinear", align_corners=False)
    targets = torch.from_numpy(raw.target.astype(np.int64))
    return images, targets, torch.from_numpy(train), torch.from_numpy(test)


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
    digits overlap, the later one is on top. No digit of the test half is in a training picture.

    Args:
        digit_size: pixels a side of a digit, scaled up from 8.
        train, test: pictures in each half, drawn on demand, so that any number is free.
        limit: the most pictures of each half.
        seed: with a picture's index, determines its digits and their places.

    Raises:
        ConfigError: a number cannot be used.
    """
    at_least(8, digit_size=digit_size)
    at_least(1, digits_per_image=digits_per_image, channels=channels, train=train, test=test, limit=limit)
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
