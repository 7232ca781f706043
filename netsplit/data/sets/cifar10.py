"""CIFAR-10, from a folder that holds ``cifar-10-batches-py``, as its authors publish it for Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torchvision import transforms
from torchvision.datasets import CIFAR10

from netsplit.data.dataset import Data, readable
from netsplit.data.draw import Drawn, limited
from netsplit.data.keys import root_folder
from netsplit.data.pictures import Transformed, to_tensor
from netsplit.errors import ConfigError

__all__ = ["cifar10"]

LAYOUT = "cifar-10-batches-py/ with data_batch_1 to data_batch_5, test_batch and batches.meta"


@readable
def cifar10(
    root: str,
    augment: bool = True,
    mean: Sequence[float] = (0.4914, 0.4822, 0.4465),
    std: Sequence[float] = (0.2470, 0.2435, 0.2616),
    limit: int | None = None,
    seed: int = 0,
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
    tensor, folder = to_tensor(mean, std), root_folder(root, LAYOUT)
    changes = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()] if augment else []
    halves = []
    for train, change in ((True, transforms.Compose([*changes, tensor])), (False, tensor)):
        try:
            half = CIFAR10(str(folder), train)
        except RuntimeError as error:  # a file is missing, or its MD5 is another
            raise ConfigError(
                f"dataset.root is {root}, which does not hold {LAYOUT}, as they are published: unpack them "
                "there."
            ) from error
        chosen = limited(len(half), limit, seed)
        half.data, half.targets = half.data[chosen], np.array(half.targets)[chosen].tolist()
        halves.append(Drawn(half, Transformed(change), seed))
    return Data("cifar10", halves[0], halves[1], 10, tuple(half.classes))
