"""Images in folders: ``root/train/<class>/*.png`` and ``root/val/<class>/*.png``, read when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import ImageOps

from netsplit.data.dataset import Data
from netsplit.data.keys import ReadBy, check_common
from netsplit.data.pictures import IMAGENET_MEAN, IMAGENET_STD, MODES, Normalise, Picture
from netsplit.data.sets.class_folders import LabelledPicture, class_folders
from netsplit.errors import ConfigError

__all__ = ["imagefolder"]


def imagefolder(
    root: str,
    image_size: int = 224,
    channels: int = 3,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    limit: int | None = None,
    workers: int = 0,
    prefetch: int = 2,
    seed: int = 0,
    read_by: ReadBy = "auto",
) -> Data:
    """Classes are the subfolders of `root`/train in alphabetical order; `root`/val is the test half.

    Images are scaled and cropped to squares, the same in every epoch: float32 (channels, image_size,
    image_size). `mean` and `std` have one value per channel, on the 0-1 scale. `limit` keeps at most so
    many files of each half, drawn by `seed` over all classes.

    Raises:
        ConfigError: a folder is missing or empty, or a number cannot be used; with the file's name, when a
            file that is asked for is no image.
    """
    if channels not in MODES:
        raise ConfigError(f"dataset.channels is {channels}: give 1 for grey or 3 for colour.")
    change = LabelledPicture(partial(_fitted, image_size), Normalise.of(mean, std, channels))
    check_common(limit, workers, prefetch, seed, image_size=image_size)
    name = Path(root).expanduser().resolve().name
    return class_folders(
        name, root, MODES[channels], (change, change), limit, workers, prefetch, seed, read_by
    )


def _fitted(size: int, picture: Picture, _: np.random.Generator) -> Picture:
    return ImageOps.fit(picture, (size, size))
