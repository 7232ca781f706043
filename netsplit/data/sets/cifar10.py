"""CIFAR-10, from a folder that holds ``cifar-10-batches-py``, as its authors publish it for Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL.Image import Image, fromarray
from torchvision import transforms
from torchvision.datasets import CIFAR10

from netsplit.data.dataset import Data
from netsplit.data.draw import Drawn, limited
from netsplit.data.keys import ReadBy, check_common, root_folder
from netsplit.data.pictures import Transformed, to_tensor
from netsplit.errors import ConfigError

__all__ = ["cifar10"]

LAYOUT = "cifar-10-batches-py/ with data_batch_1 to data_batch_5, test_batch and batches.meta"


def cifar10(
    root: str,
    augment: bool = True,
    mean: Sequence[float] = (0.4914, 0.4822, 0.4465),
    std: Sequence[float] = (0.2470, 0.2435, 0.2616),
    limit: int | None = None,
    workers: int = 0,
    prefetch: int = 2,
    seed: int = 0,
    read_by: ReadBy = "auto",
) -> Data:
    """50,000 and 10,000 float32 images (3, 32, 32) of 10 classes, kept in memory as bytes.

    Training images are padded by 4 pixels of black, cut at random to their size again, and flipped half
    of the time.

    Args:
        augment: false leaves them as they are.
        limit: at most so many images of each half, drawn by `seed`.
        seed: with the epoch and the index of an image, it fixes the augmentation.

    Raises:
        ConfigError: a file is missing or not CIFAR-10's, which its MD5 says, or a number cannot be used.
    """
    tensor = to_tensor(mean, std)
    check_common(limit, workers, prefetch, seed)
    folder = root_folder(root, LAYOUT)
    try:
        train, test = (CIFAR10(str(folder), each) for each in (True, False))
    except RuntimeError as error:  # a file is missing, or its MD5 is another
        raise ConfigError(
            f"dataset.root is {root}, which does not hold {LAYOUT}, as they are published: unpack them there."
        ) from error
    changes = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()] if augment else []
    halves = (
        Drawn(_images(train, limit, seed), Transformed(transforms.Compose([*changes, tensor])), seed),
        Drawn(_images(test, limit, seed), Transformed(tensor), seed),
    )
    return Data("cifar10", *halves, 10, tuple(train.classes), workers, prefetch, read_by=read_by)


@dataclass(frozen=True, eq=False)
class _Images:
    pixels: np.ndarray  # (n, 32, 32, 3) uint8
    targets: np.ndarray  # (n,) int64

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int, /) -> tuple[Image, int]:
        return fromarray(self.pixels[index]), int(self.targets[index])


def _images(half: CIFAR10, limit: int | None, seed: int) -> _Images:
    chosen = limited(len(half.targets), limit, seed)
    return _Images(half.data[chosen], np.array(half.targets)[chosen])
