"""ImageNet (ILSVRC 2012), from a folder that holds ``train/<wnid>/*.JPEG`` and ``val/<wnid>/*.JPEG``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from netsplit.data.dataset import Data
from netsplit.data.keys import ReadBy, check_common
from netsplit.data.pictures import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Normalise,
    Picture,
    centre_crop,
    flip,
    random_resized_crop,
)
from netsplit.data.sets.class_folders import LabelledPicture, class_folders
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
    read_by: ReadBy = "auto",
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
    check_common(limit, workers, prefetch, seed, image_size=image_size)
    if resize < image_size:
        raise ConfigError(f"dataset.resize is {resize}: give at least dataset.image_size, {image_size}.")
    centred = LabelledPicture(partial(_centred, image_size, resize), normalise)
    augmented = LabelledPicture(partial(_augmented, image_size), normalise)
    changes = (augmented if augment else centred), centred
    return class_folders("imagenet", root, "RGB", changes, limit, workers, prefetch, seed, read_by)


def _augmented(size: int, picture: Picture, rng: np.random.Generator) -> Picture:
    picture = random_resized_crop(picture, size, rng)
    return flip(picture) if rng.random() < 0.5 else picture


def _centred(size: int, resize: int, picture: Picture, _: np.random.Generator) -> Picture:
    return centre_crop(picture, resize, size)
