"""Handwritten digits of scikit-learn, 1,797 images of 8x8."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import interpolate
from torch.utils.data import TensorDataset

from netsplit.data.dataset import Data
from netsplit.data.keys import at_least

__all__ = ["digits"]


def digits(image_size: int = 32, channels: int = 3, limit: int | None = None, seed: int = 0) -> Data:
    """Digits as float32 images (channels, image_size, image_size), scaled bilinearly, grey repeated.

    A fifth is the test half; the split is stratified by class and fixed by `seed`. The train half has
    mean 0 and standard deviation 1. `limit` is the most samples of each half, for quick trials.

    Raises:
        ConfigError: a size, a number of channels or a limit below what can be used.
    """
    from sklearn.datasets import load_digits  # slow to import
    from sklearn.model_selection import train_test_split

    at_least(8, image_size=image_size)
    at_least(1, channels=channels, limit=limit)
    raw = load_digits()
    halves = train_test_split(
        np.arange(len(raw.target)), test_size=0.2, stratify=raw.target, random_state=seed
    )
    images = torch.from_numpy(raw.images.astype(np.float32) / 16)[:, None]
    images = interpolate(images, size=(image_size, image_size), mode="bilinear", align_corners=False)
    targets = torch.from_numpy(raw.target.astype(np.int64))
    images = (images - images[halves[0]].mean()) / images[halves[0]].std()
    chosen = (torch.from_numpy(indices[:limit]) for indices in halves)
    train, test = (
        TensorDataset(images[own].expand(-1, channels, -1, -1).contiguous(), targets[own]) for own in chosen
    )
    return Data("digits", train, test, 10, tuple("0123456789"))
