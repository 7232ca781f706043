"""Images in a folder for each class, ``train/<class>/`` and ``val/<class>/``: one's own, or ImageNet."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image
from torch import Tensor
from torchvision import transforms
from torchvision.datasets import folder as folders

from netsplit.data.dataset import Data
from netsplit.data.draw import Drawn, limited
from netsplit.data.keys import ReadBy, check_common, root_folder
from netsplit.data.pictures import IMAGENET_MEAN, IMAGENET_STD, Transformed, open_picture, to_tensor
from netsplit.errors import ConfigError

__all__ = ["imagefolder", "imagenet"]

MODES = {1: "L", 3: "RGB"}  # of Pillow, by the number of channels
Changes = tuple[
    Callable[[Any], Tensor], Callable[[Any], Tensor]
]  # of the training half, and of the test half


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
    tensor = to_tensor(mean, std, channels)
    check_common(limit, workers, prefetch, seed, image_size=image_size)
    fitted = transforms.Compose(
        [transforms.Resize(image_size), transforms.CenterCrop(image_size), tensor],
    )
    halves = _halves(root, MODES[channels], (fitted, fitted), limit, seed)
    return Data(Path(root).expanduser().resolve().name, *halves, workers, prefetch, read_by=read_by)


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
    """ImageNet (ILSVRC 2012) with the customary augmentation: float32 images (3, image_size, image_size).

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
    tensor = to_tensor(mean, std)
    check_common(limit, workers, prefetch, seed, image_size=image_size)
    if resize < image_size:
        raise ConfigError(f"dataset.resize is {resize}: give at least dataset.image_size, {image_size}.")
    centred = transforms.Compose([transforms.Resize(resize), transforms.CenterCrop(image_size), tensor])
    augmented = transforms.Compose(
        [transforms.RandomResizedCrop(image_size), transforms.RandomHorizontalFlip(), tensor]
    )
    halves = _halves(root, "RGB", (augmented if augment else centred, centred), limit, seed)
    return Data("imagenet", *halves, workers, prefetch, read_by=read_by)


@dataclass(frozen=True, eq=False)
class _ImageFiles:
    """(picture, class index) for every file; a file is opened when its index is asked for.

    Names are kept in one array, not as a million objects: what loader processes share stays shared.
    """

    names: np.ndarray  # (n,) bytes: paths
    targets: np.ndarray  # (n,) int64
    mode: str

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int, /) -> tuple[Image, int]:
        """Raises ConfigError where the file cannot be read as an image."""
        return open_picture(os.fsdecode(bytes(self.names[index])), self.mode), int(self.targets[index])


def _halves(
    root: str, mode: str, changes: Changes, limit: int | None, seed: int
) -> tuple[Drawn, Drawn, int, list[str]]:
    """Both halves, the number of classes and their names, which are train's folders.

    Raises:
        ConfigError: a folder is missing or empty, or has a class that train/ does not have.
    """
    top = root_folder(root, "train/ and val/")
    classes: list[str] = []
    halves = []
    for half, change in zip(("train", "val"), changes, strict=True):
        try:
            own, _ = folders.find_classes(str(top / half))
            classes = classes or own
            if unknown := sorted(set(own) - set(classes)):
                raise ConfigError(
                    f"{top / half} has classes that train/ does not have: {', '.join(unknown[:5])}."
                )
            files = folders.make_dataset(
                str(top / half),
                {name: classes.index(name) for name in own},
                folders.IMG_EXTENSIONS,
                None,
                True,
            )
        except FileNotFoundError as error:
            raise ConfigError(
                f"dataset.root is {root}, which must hold train/<class>/ and val/<class>/ ({error})."
            ) from error
        if not files:
            raise ConfigError(f"{top / half} holds no image: put files in its class folders.")
        names, targets = zip(*files, strict=True)
        chosen = limited(len(files), limit, seed)
        read = _ImageFiles(np.array([os.fsencode(n) for n in names])[chosen], np.array(targets)[chosen], mode)
        halves.append(Drawn(read, Transformed(change), seed))
    return halves[0], halves[1], len(classes), classes
