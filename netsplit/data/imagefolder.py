"""Images in folders: ``root/train/<class>/*.png`` and ``root/val/<class>/*.png``, read when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from netsplit.data.dataset import Data
from netsplit.errors import ConfigError

__all__ = ["ImageFiles", "imagefolder"]

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp"})
MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class ImageFiles:
    """Image files with their class indices; a file is opened when its index is asked for."""

    files: tuple[tuple[Path, int], ...]
    image_size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int, /) -> tuple[Tensor, Tensor]:
        """Image (channels, image_size, image_size) float32, normalised; class index as int64 scalar.

        Raises:
            ConfigError: the file cannot be read as an image.
        """
        path, target = self.files[index]
        try:
            with Image.open(path) as image:
                square = ImageOps.fit(image.convert(MODES[self.channels]), (self.image_size, self.image_size))
        except OSError as error:
            raise ConfigError(
                f"cannot read {path} as an image ({error}): mend or remove the file."
            ) from error
        pixels = torch.from_numpy(np.array(square, dtype=np.float32) / 255.0)
        planes = pixels.reshape(self.image_size, self.image_size, self.channels).permute(2, 0, 1)
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return ((planes - mean) / std).contiguous(), torch.tensor(target)


def imagefolder(
    root: str,
    image_size: int = 224,
    channels: int = 3,
    mean: Sequence[float] = (0.485, 0.456, 0.406),
    std: Sequence[float] = (0.229, 0.224, 0.225),
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """Classes are the subfolders of `root`/train in alphabetical order; `root`/val is the test half.

    Images are scaled and cropped to squares. `mean` and `std` have one value per channel, on the 0-1
    scale. `limit` keeps at most so many files of each half, drawn by `seed` over all classes.

    Raises:
        ConfigError: a folder is missing or empty, or a number cannot be used.
    """
    if channels not in MODES:
        raise ConfigError(f"dataset.channels is {channels}: give 1 for grey or 3 for colour.")
    for key, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise ConfigError(
                f"dataset.{key} has {len(values)} values: give one for each of {channels} channels."
            )
    if min(std) <= 0:
        raise ConfigError(f"dataset.std is {list(std)}: give values above 0.")
    for key, value in (("image_size", image_size), ("limit", 1 if limit is None else limit)):
        if value < 1:
            raise ConfigError(f"dataset.{key} is {value}: give at least 1.")
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"dataset.root is {root}, which is not a folder: give one that holds train/ and val/."
        )
    classes = _classes(folder / "train")

    def half(name: str) -> ImageFiles:
        files = _limited(_files(folder / name, classes), limit, seed)
        return ImageFiles(files, image_size, channels, tuple(mean), tuple(std))

    return Data(folder.resolve().name, half("train"), half("val"), len(classes), classes)


def _classes(folder: Path) -> tuple[str, ...]:
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not there: dataset.root must hold train/<class>/ and val/<class>/.")
    names = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))
    if not names:
        raise ConfigError(f"{folder} has no subfolder: give one folder of images per class.")
    return names


def _files(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    unknown = sorted(set(_classes(folder)) - set(classes))
    if unknown:
        raise ConfigError(f"{folder} has classes that train/ does not have: {', '.join(unknown)}.")
    files = [
        (path, target)
        for target, name in enumerate(classes)
        if (folder / name).is_dir()
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in SUFFIXES
    ]
    if not files:
        raise ConfigError(
            f"{folder} holds no image: put {', '.join(sorted(SUFFIXES))} files in its class folders."
        )
    return files


def _limited(files: list[tuple[Path, int]], limit: int | None, seed: int) -> tuple[tuple[Path, int], ...]:
    if limit is None or limit >= len(files):
        return tuple(files)
    chosen = np.random.default_rng(seed).permutation(len(files))[:limit]
    return tuple(files[index] for index in sorted(chosen))
