"""Images in a folder for each class, ``train/<class>/`` and ``val/<class>/``: one's own, or ImageNet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from netsplit.data.dataset import Data, readable
from netsplit.data.draw import Drawn, limited
from netsplit.data.keys import at_least, root_folder
from netsplit.data.pictures import IMAGENET_MEAN, IMAGENET_STD, Transformed, open_picture, to_tensor
from netsplit.errors import ConfigError

__all__ = ["imagefolder", "imagenet"]

MODES = {1: "L", 3: "RGB"}  # of Pillow, by the number of channels


@readable
def imagefolder(
    root: str,
    image_size: int = 224,
    channels: int = 3,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    limit: int | None = None,
    seed: int = 0,
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
    at_least(1, image_size=image_size)
    tensor = to_tensor(mean, std, channels)
    fitted = transforms.Compose([transforms.Resize(image_size), transforms.CenterCrop(image_size), tensor])
    name = Path(root).expanduser().resolve().name
    return _classified(name, root, MODES[channels], (fitted, fitted), limit, seed)


@readable
def imagenet(
    root: str,
    image_size: int = 224,
    resize: int = 256,
    augment: bool = True,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    limit: int | None = None,
    seed: int = 0,
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
    at_least(1, image_size=image_size)
    if resize < image_size:
        raise ConfigError(f"dataset.resize is {resize}: give at least dataset.image_size, {image_size}.")
    centred = transforms.Compose([transforms.Resize(resize), transforms.CenterCrop(image_size), tensor])
    augmented = transforms.Compose(
        [transforms.RandomResizedCrop(image_size), transforms.RandomHorizontalFlip(), tensor]
    )
    return _classified("imagenet", root, "RGB", (augmented if augment else centred, centred), limit, seed)


def _classified(
    name: str,
    root: str,
    mode: str,
    changes: Sequence[Callable[[Any], Tensor]],
    limit: int | None,
    seed: int,
) -> Data:
    """Both halves, each with its change; a file is opened when its index is asked for.

    Raises:
        ConfigError: a folder is missing or empty, or has a class that train/ does not have.
    """
    top = root_folder(root, "train/ and val/")
    loader: Any = partial(open_picture, mode=mode)
    try:
        train, test = (ImageFolder(str(top / half), loader=loader) for half in ("train", "val"))
        numbers = [train.class_to_idx[each] for each in test.classes]
    except FileNotFoundError as error:
        raise ConfigError(
            f"dataset.root is {root}, which must hold train/<class>/ and val/<class>/ with images ({error})."
        ) from error
    except KeyError as error:
        raise ConfigError(f"{top / 'val'} has a class that train/ does not have: {error}.") from error
    test.target_transform = numbers.__getitem__
    halves = [
        Drawn(Subset(half, limited(len(half), limit, seed).tolist()), Transformed(change), seed)
        for half, change in zip((train, test), changes, strict=True)
    ]
    return Data(name, halves[0], halves[1], len(train.classes), train.classes)
