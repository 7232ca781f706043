"""Pictures of files: opened, changed by torchvision's transforms, and made normalised tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms

from netsplit.errors import ConfigError

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "Transformed", "open_picture", "to_tensor"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def to_tensor(mean: Sequence[float], std: Sequence[float], channels: int = 3) -> Callable[[Any], Tensor]:
    """Makes a picture float32 (channels, height, width), normalised on the scale from 0 to 1.

    Raises:
        ConfigError: not a value for each of `channels`, or a deviation that is not above 0.
    """
    for key, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise ConfigError(
                f"dataset.{key} has {len(values)} values: give one for each of {channels} channels."
            )
    if not min(std) > 0:
        raise ConfigError(f"dataset.std is {list(std)}: give values above 0.")
    transform: Callable[[Any], Tensor] = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize(list(mean), list(std))]
    )
    return transform


@dataclass(frozen=True)
class Transformed:
    """Changes (picture, class) by torchvision's transforms, whose draws are those of the generator alone."""

    transform: Callable[[Any], Tensor]

    def __call__(self, sample: tuple[Any, int], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**63)))
            return self.transform(sample[0]), torch.tensor(sample[1])


def open_picture(path: str | Path, mode: str | None = None) -> Image.Image:
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
