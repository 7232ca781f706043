"""Handwritten digits that ship with scikit-learn: 1,797 real 8x8 images, no download."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import TensorDataset

from netsplit.data.dataset import Data, readable
from netsplit.data.keys import at_least

__all__ = ["digits", "digits_split"]


@readable
def digits(image_size: int = 32, channels: int = 3, limit: int | None = None, seed: int = 0) -> Data:
    """Digits as float32 images (channels, image_size, image_size), scaled bilinearly, grey repeated.

    A fifth is the test half; the split is stratified by class and fixed by `seed`. The train half has
    mean 0 and standard deviation 1. `limit` keeps at most so many samples of each half, for quick trials.

    Raises:
        ConfigError: a size, a number of channels or a limit below what can be used.
    """
    at_least(8, image_size=image_size)
    at_least(1, channels=channels)
    images, targets, *halves = digits_split(image_size, seed)
    images = (images - images[halves[0]].mean()) / images[halves[0]].std()
    chosen = (indices[:limit] for indices in halves)
    train, test = (
        TensorDataset(images[own].expand(-1, channels, -1, -1).contiguous(), targets[own]) for own in chosen
    )
    return Data("digits", train, test, 10, tuple("0123456789"))


def digits_split(image_size: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All digits, and which of them are the train and the test half.

    Returns:
        images (1797, 1, image_size, image_size) between 0 and 1, scaled bilinearly; classes (1797,) int64;
        the indices of the two halves, shuffled.
    """
    from sklearn.datasets import load_digits  # takes a second to import, which the other datasets spare
    from sklearn.model_selection import train_test_split

    raw = load_digits()
    train, test = train_test_split(
        np.arange(len(raw.target)), test_size=0.2, stratify=raw.target, random_state=seed
    )
    images = torch.from_numpy(raw.images.astype(np.float32) / 16)[:, None]
    images = interpolate(images, size=(image_size, image_size), mode="bilinear", align_corners=False)
    targets = torch.from_numpy(raw.target.astype(np.int64))
    return images, targets, torch.from_numpy(train), torch.from_numpy(test)
