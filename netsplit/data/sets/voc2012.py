"""Pascal VOC 2012 segmentation, from a folder that holds ``VOCdevkit/VOC2012``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from netsplit.data.dataset import IGNORED, Data
from netsplit.data.draw import Drawn, limited
from netsplit.data.keys import ReadBy, check_common, existing_file, existing_folder, root_folder
from netsplit.data.pictures import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Normalise,
    Picture,
    flip,
    open_picture,
    planes,
)
from netsplit.errors import ConfigError

__all__ = ["CLASSES", "voc2012"]

CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip

BORDER = 255  # the devkit's index of pixels between objects, which no class owns
LAYOUT = "VOCdevkit/VOC2012/ with JPEGImages, SegmentationClass and ImageSets/Segmentation"
SCALES = (0.5, 2.0)


def voc2012(
    root: str,
    image_size: int = 512,
    augment: bool = True,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    limit: int | None = None,
    workers: int = 0,
    prefetch: int = 2,
    seed: int = 0,
    read_by: ReadBy = "auto",
) -> Data:
    """21 classes: float32 images (3, image_size, image_size), int64 masks (image_size, image_size).

    Training images are scaled by 0.5 to 2, cut at random and flipped half of the time, each with its mask.
    Test images keep their size where they fit into the square, which all of VOC do into 500 x 500, and are
    made smaller where they do not. What a picture does not fill is mean grey, and `IGNORED` in the mask, as
    are the borders of objects.

    Args:
        augment: false gives the training half the test half's treatment.
        limit: at most so many images of each half, drawn by `seed`.
        seed: with the epoch and the index of an image, it fixes the augmentation.

    Raises:
        ConfigError: a folder or file is missing, or a number cannot be used; with the file's name, when a
            picture or mask that is asked for cannot be used.
    """
    normalise = Normalise.of(mean, std)
    check_common(limit, workers, prefetch, seed, image_size=image_size)
    folder = existing_folder(root_folder(root, LAYOUT) / "VOCdevkit" / "VOC2012", LAYOUT)
    fitted = _Fitted(image_size, normalise)
    change = _AugmentedScenes(image_size, normalise) if augment else fitted
    train, test = (_Pairs(folder, _names(folder, half, limit, seed)) for half in ("train", "val"))
    halves = Drawn(train, change, seed), Drawn(test, fitted, seed)
    return Data(
        "voc2012",
        *halves,
        len(CLASSES),
        CLASSES,
        workers=workers,
        prefetch=prefetch,
        read_by=read_by,
        metric="mean_iou",
    )


def _names(folder: Path, half: str, limit: int | None, seed: int) -> tuple[str, ...]:
    file = existing_file(folder / "ImageSets" / "Segmentation" / f"{half}.txt", LAYOUT)
    names = file.read_text(encoding="utf-8", errors="replace").split()
    if not names:
        raise ConfigError(f"{file} names no image: put one name a line, without suffix.")
    return tuple(names[index] for index in limited(len(names), limit, seed))


@dataclass(frozen=True)
class _Pairs:
    """(picture, mask) for every name; the mask's pixels are class indices, 255 where there is none."""

    folder: Path
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int, /) -> tuple[Picture, Picture]:
        name = self.names[index]
        path = self.folder / "SegmentationClass" / f"{name}.png"
        picture = open_picture(self.folder / "JPEGImages" / f"{name}.jpg", "RGB")
        mask = open_picture(path)
        if mask.mode not in ("P", "L"):
            raise ConfigError(f"{path} has colours instead of class indices: give the devkit's palette PNG.")
        if mask.size != picture.size:
            raise ConfigError(
                f"{path} is {mask.size} large, its picture {picture.size}: give masks that fit."
            )
        used = np.bincount(np.array(mask).ravel(), minlength=BORDER + 1)
        wrong = used[len(CLASSES) : BORDER].nonzero()[0] + len(CLASSES)
        if len(wrong):
            raise ConfigError(f"{path} has a class {wrong[0]}: give 0 to {len(CLASSES) - 1}, or {BORDER}.")
        return picture, mask


@dataclass(frozen=True)
class _AugmentedScenes:
    size: int
    normalise: Normalise

    def __call__(self, sample: tuple[Picture, Picture], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        picture, mask = _scaled(*sample, rng.uniform(*SCALES))
        # The smaller of picture and square lies anywhere in the other, on each axis.
        room = [side - self.size for side in picture.size]
        left, top = (int(rng.integers(min(0, spare), max(0, spare) + 1)) for spare in room)
        if rng.random() < 0.5:
            picture, mask = flip(picture), flip(mask)
        return _square(picture, mask, (left, top), self.size, self.normalise)


@dataclass(frozen=True)
class _Fitted:
    size: int
    normalise: Normalise

    def __call__(self, sample: tuple[Picture, Picture], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        picture, mask = _scaled(*sample, min(1.0, self.size / max(sample[0].size)))
        return _square(picture, mask, (0, 0), self.size, self.normalise)


def _scaled(picture: Picture, mask: Picture, scale: float) -> tuple[Picture, Picture]:
    width, height = (max(1, round(side * scale)) for side in picture.size)
    return (
        picture.resize((width, height), Image.Resampling.BILINEAR),
        mask.resize((width, height), Image.Resampling.NEAREST),
    )


def _square(
    picture: Picture, mask: Picture, corner: tuple[int, int], size: int, normalise: Normalise
) -> tuple[Tensor, Tensor]:
    """The square whose upper left corner lies at `corner` of the picture, filled up where it lies outside."""
    left, top = corner
    width, height = picture.size
    x, y = max(0, left), max(0, top)  # where picture and square begin to overlap, in the picture
    right, bottom = min(width, left + size), min(height, top + size)
    image = torch.zeros(len(normalise.mean), size, size)  # the mean, once normalised
    target = torch.full((size, size), IGNORED)
    rows, columns = slice(y - top, bottom - top), slice(x - left, right - left)
    image[:, rows, columns] = normalise(planes(picture.crop((x, y, right, bottom))))
    classes = torch.from_numpy(np.array(mask.crop((x, y, right, bottom)), dtype=np.int64))
    target[rows, columns] = classes.masked_fill(classes == BORDER, IGNORED)
    return image, target
