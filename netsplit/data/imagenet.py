"""ImageNet (ILSVRC 2012), from a folder that holds ``train/<wnid>/*.JPEG`` and ``val/<wnid>/*.JPEG``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from netsplit.data.class_folders import class_folders
from netsplit.data.dataset import Data
from netsplit.data.draw import Drawn
from netsplit.data.keys import at_least, check_common
from netsplit.data.pictures import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Normalise,
    Picture,
    centre_crop,
    flip,
    planes,
    random_resized_crop,
)
from netsplit.errors import ConfigError

__all__ = ["imagenet"]


def imagenet(
    root: str,
    image_size: int = 224,
    resize: int = 256,
    augment: bool = True,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    limit: int | None = None,
    workers: int = 0,
    prefetch: int = 2,
    seed: int = 0,
) -> Data:
    """ImageNet with the customary augmentation: float32 images (3, image_size, image_size).

    Training images are a random part of the picture, scaled, and flipped half of the time; test images
    are the middle of the picture scaled to a shorter side of `resize`. Classes are the folders of train/
    in alphabetical order, which is the order of the 1,000 wnids.

    Args:
        augment: false gives the training half the test half's treatment.
        limit: at most so many files of each half, drawn by `seed` over all classes.
        seed: with the epoch and the index of an image, it fixes the augmentation.

    Raises:
        ConfigError: a folder is missing or empty, or a number cannot be used; with the file's name, when a
            file that is asked for is no image.
    """
    normalise = Normalise.of(mean, std)
    at_least(1, image_size=image_size)
    if resize < image_size:
        raise ConfigError(f"dataset.resize is {resize}: give at least dataset.image_size, {image_size}.")
    check_common(limit, workers, prefetch, seed)
    train, test, classes = class_folders(root, "RGB", limit, seed)
    centred = _Centred(image_size, resize, normalise)
    change = _AugmentedImages(image_size, normalise) if augment else centred
    halves = Drawn(train, change, seed), Drawn(test, centred, seed)
    return Data("imagenet", *halves, len(classes), classes, workers=workers, prefetch=prefetch)


@dataclass(frozen=True)
class _AugmentedImages:
    size: int
    normalise: Normalise

    def __call__(self, sample: tuple[Picture, int], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        picture, target = sample
        picture = random_resized_crop(picture, self.size, rng)
        if rng.random() < 0.5:
            picture = flip(picture)
        return self.normalise(planes(picture)), torch.tensor(target)


@dataclass(frozen=True)
class _Centred:
    size: int
    resize: int
    normalise: Normalise

    def __call__(self, sample: tuple[Picture, int], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        picture, target = sample
        return self.normalise(planes(centre_crop(picture, self.resize, self.size))), torch.tensor(target)
