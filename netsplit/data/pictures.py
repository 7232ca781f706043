"""Pictures: opened, cut, scaled, flipped, and made normalised tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from netsplit.errors import ConfigError

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "MODES",
    "Normalise",
    "centre_crop",
    "flip",
    "open_picture",
    "planes",
    "random_resized_crop",
]

Picture = Image.Image

MODES = {1: "L", 3: "RGB"}  # by the number of channels

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_AREAS = (0.08, 1.0)
_ASPECTS = (3 / 4, 4 / 3)
_TRIES = 10


@dataclass(frozen=True)
class Normalise:
    """Subtract a mean from, and divide by a deviation, every channel of values between 0 and 1.

    Raises:
        ConfigError: not a value for each of `channels`, or a deviation that is not above 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, mean: Sequence[float], std: Sequence[float], channels: int = 3) -> Normalise:
        for key, values in (("mean", mean), ("std", std)):
            if len(values) != channels:
                raise ConfigError(
                    f"dataset.{key} has {len(values)} values: give one for each of {channels} channels."
                )
        if not min(std) > 0:
            raise ConfigError(f"dataset.std is {list(std)}: give values above 0.")
        return cls(tuple(mean), tuple(std))

    def __call__(self, image: Tensor) -> Tensor:
        """Image (channels, height, width) of the same shape, float32."""
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return ((image - mean) / std).contiguous()


def open_picture(path: Path, mode: str | None = None) -> Picture:
    """The picture in a file, whole; `mode` is Pillow's ("L" grey, "RGB" colour), null keeps the file's.

    Raises:
        ConfigError: the file is not there, or cannot be read as an image.
    """
    try:
        with Image.open(path) as image:
            image.load()
            return image if mode is None else image.convert(mode)
    except Exception as error:  # Pillow's decoders raise whatever a broken file makes them stumble over
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise ConfigError(f"cannot read {path} as an image ({reason}): mend or remove the file.") from error


def planes(picture: Picture) -> Tensor:
    """Float32 (channels, height, width) between 0 and 1."""
    pixels = np.array(picture, dtype=np.float32) / 255.0
    return torch.from_numpy(pixels.reshape(picture.height, picture.width, -1)).permute(2, 0, 1)


def flip(picture: Picture) -> Picture:
    """Left and right exchanged."""
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def centre_crop(picture: Picture, shorter: int, size: int) -> Picture:
    """The middle `size` x `size` of the picture, had it been scaled so that its shorter side is `shorter`."""
    side = min(picture.size) * size / shorter
    left, top = (picture.width - side) / 2, (picture.height - side) / 2
    return _cut(picture, (left, top, left + side, top + side), size)


def random_resized_crop(picture: Picture, size: int, rng: np.random.Generator) -> Picture:
    """A part of 8 to 100 % of the area and a side ratio of 3:4 to 4:3, scaled to a square.

    The augmentation that ImageNet models are trained with: Szegedy et al., Going Deeper with Convolutions,
    2015, section 6. Where ten draws give no part that fits, the largest centred one of allowed ratio.
    """
    width, height = picture.size
    for _ in range(_TRIES):
        area = width * height * rng.uniform(*_AREAS)
        ratio = math.exp(rng.uniform(math.log(_ASPECTS[0]), math.log(_ASPECTS[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return _cut(picture, (left, top, left + w, top + h), size)
    ratio = min(max(width / height, _ASPECTS[0]), _ASPECTS[1])
    across, down = min(width, height * ratio) / 2, min(height, width / ratio) / 2
    x, y = width / 2, height / 2
    return _cut(picture, (x - across, y - down, x + across, y + down), size)


def _cut(picture: Picture, box: tuple[float, float, float, float], size: int) -> Picture:
    return picture.resize((size, size), Image.Resampling.BILINEAR, box=box)
