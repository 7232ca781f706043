"""Image files in a folder per class, listed at once and opened when asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from netsplit.data.dataset import Data
from netsplit.data.draw import Drawn, limited
from netsplit.data.keys import ReadBy, existing_folder, root_folder
from netsplit.data.pictures import Normalise, Picture, open_picture, planes
from netsplit.errors import ConfigError

__all__ = ["ImageFiles", "LabelledPicture", "class_folders"]

LAYOUT = "train/<class>/ and val/<class>/"
SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp"})


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """(picture, class index) for every file; a file is opened when its index is asked for.

    Names are kept in one array, not as a million objects: what loader processes share stays shared.
    """

    folder: Path
    names: np.ndarray  # (n,) bytes: paths within the folder
    targets: np.ndarray  # (n,) int64
    mode: str

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int, /) -> tuple[Picture, int]:
        """Raises ConfigError where the file cannot be read as an image."""
        path = self.folder / os.fsdecode(bytes(self.names[index]))
        return open_picture(path, self.mode), int(self.targets[index])


@dataclass(frozen=True)
class LabelledPicture:
    """Makes (picture, class index) a normalised image (channels, height, width) and its class, a tensor.

    Args:
        change: gives the picture the size of all; drawn by the generator, where it draws.
    """

    change: Callable[[Picture, np.random.Generator], Picture]
    normalise: Normalise

    def __call__(self, sample: tuple[Picture, int], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        picture, target = sample
        return self.normalise(planes(self.change(picture, rng))), torch.tensor(target)


def class_folders(
    name: str,
    root: str,
    mode: str,
    changes: tuple[LabelledPicture, LabelledPicture],
    limit: int | None,
    workers: int,
    prefetch: int,
    seed: int,
    read_by: ReadBy,
) -> Data:
    """The halves `root`/train and `root`/val; classes are train's folders in alphabetical order.

    Args:
        mode: Pillow's, see `open_picture`.
        changes: of a sample of the training half, and of the test half.
        limit: at most so many files of each half, drawn by `seed` over all classes.

    Raises:
        ConfigError: a folder is missing or empty, or has a class that train/ does not have.
    """
    folder = root_folder(root, "train/ and val/")
    classes = _classes(folder / "train")
    train, test = (
        Drawn(_files(folder / half, classes, mode, limit, seed), change, seed)
        for half, change in zip(("train", "val"), changes, strict=True)
    )
    return Data(name, train, test, len(classes), classes, workers=workers, prefetch=prefetch, read_by=read_by)


def _classes(folder: Path) -> tuple[str, ...]:
    with os.scandir(existing_folder(folder, LAYOUT)) as entries:
        folders = (entry.name for entry in entries if entry.is_dir())
        names = tuple(sorted(name for name in folders if not name.startswith(".")))
    if not names:
        raise ConfigError(f"{folder} has no subfolder: give one folder of images per class.")
    return names


def _files(folder: Path, classes: tuple[str, ...], mode: str, limit: int | None, seed: int) -> ImageFiles:
    own = set(_classes(folder))
    unknown = sorted(own - set(classes))
    if unknown:
        shown = ", ".join(unknown[:5]) + (", …" if len(unknown) > 5 else "")
        raise ConfigError(f"{folder} has classes that train/ does not have: {shown}.")
    names: list[bytes] = []
    targets: list[int] = []
    for target, name in enumerate(classes):
        files = _images(folder / name) if name in own else []
        names.extend(os.fsencode(os.path.join(name, file)) for file in files)
        targets.extend([target] * len(files))
    if not names:
        raise ConfigError(
            f"{folder} holds no image: put {', '.join(sorted(SUFFIXES))} files in its class folders."
        )
    chosen = limited(len(names), limit, seed)
    return ImageFiles(folder, np.array(names)[chosen], np.array(targets)[chosen], mode)


def _images(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if os.path.splitext(e.name)[1].lower() in SUFFIXES)
