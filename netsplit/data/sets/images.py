"""Image datasets by torchvision: CIFAR-10, ImageNet, folders, Pascal VOC."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Subset
from torchvision import transforms
from torchvision.datasets import CIFAR10, ImageFolder, VOCSegmentation
from torchvision.transforms import v2
from torchvision.tv_tensors import Mask

from netsplit.data.dataset import IGNORED, Data, Drawn, limited
from netsplit.data.keys import at_least, root_folder
from netsplit.errors import ConfigError

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "cifar10", "imagefolder", "to_tensor", "voc2012"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CIFAR_LAYOUT = "cifar-10-batches-py/ with data_batch_1 to data_batch_5, test_batch and batches.meta"
VOC_LAYOUT = "VOCdevkit/VOC2012/ with JPEGImages, SegmentationClass and ImageSets/Segmentation"
MODES = {1: "L", 3: "RGB"}  # Pillow's, by number of channels
VOC_CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip

BORDER = 255  # the devkit's index of pixels between objects
SCALES = (0.5, 2.0)


def to_tensor(mean: Sequence[float], std: Sequence[float], channels: int = 3) -> Callable[[Any], Tensor]:
    """A transform of pictures to float32 (channels, height, width), normalised on the 0-1 scale.

    Raises:
        ConfigError: not one value for each channel, or a deviation that is not above 0.
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


@contextmanager
def drawing_by(rng: np.random.Generator) -> Iterator[None]:
    """Seed torch's global generator, which torchvision's transforms use, by `rng`; restore it after."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        yield


@dataclass(frozen=True)
class Transformed:
    """Apply torchvision's transforms to (picture, class), with draws from the generator only."""

    transform: Callable[[Any], Tensor]

    def __call__(self, sample: tuple[Any, int], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        with drawing_by(rng):
            return self.transform(sample[0]), torch.tensor(sample[1])


def open_picture(path: str | Path, mode: str) -> Image.Image:
    """The picture in a file; `mode` is Pillow's ("L" grey, "RGB" colour).

    Raises:
        ConfigError: the file is not there, or cannot be read as an image.
    """
    try:
        with Image.open(path) as image:
            image.load()
            return image.convert(mode)
    except Exception as error:  # Pillow's decoders may raise anything
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise ConfigError(f"cannot read {path} as an image ({reason}): repair or remove the file.") from error


def cifar10(
    root: str,
    augment: bool = True,
    mean: Sequence[float] = (0.4914, 0.4822, 0.4465),
    std: Sequence[float] = (0.2470, 0.2435, 0.2616),
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """50,000 and 10,000 float32 images (3, 32, 32) of 10 classes, kept in memory as bytes.

    Training images get a border of 4 black pixels, are cropped at random, and flipped half of the time.

    Args:
        augment: False: no augmentation.
        limit: the most images of each half, drawn by `seed`.
        seed: with epoch and index, determines the augmentation.

    Raises:
        ConfigError: a file is missing or not CIFAR-10's (by MD5), or a number cannot be used.
    """
    tensor, folder = to_tensor(mean, std), root_folder(root, CIFAR_LAYOUT)
    changes = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()] if augment else []
    halves = []
    for train, change in ((True, transforms.Compose([*changes, tensor])), (False, tensor)):
        try:
            half = CIFAR10(str(folder), train)
        except RuntimeError as error:  # a file is missing, or its MD5 differs
            raise ConfigError(
                f"dataset.root is {root}, which does not hold {CIFAR_LAYOUT} as published: unpack the "
                "archive there."
            ) from error
        chosen = limited(len(half), limit, seed)
        half.data, half.targets = half.data[chosen], np.array(half.targets)[chosen].tolist()
        halves.append(Drawn(half, Transformed(change), seed))
    return Data("cifar10", halves[0], halves[1], 10, tuple(half.classes))


def imagefolder(
    root: str,
    image_size: int = 224,
    channels: int = 3,
    resize: int | None = None,
    augment: bool = False,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """Classes are the subfolders of `root`/train in alphabetical order; `root`/val is the test half.

    Images are scaled and their middle is cut out: float32 (channels, image_size, image_size). Files are
    opened on demand.

    Args:
        resize: the shorter side before the middle is cut out; None: `image_size`.
        augment: training images are random crops instead, scaled, and flipped half of the time.
        mean, std: one value per channel, on the 0-1 scale.
        limit: the most files of each half, drawn by `seed` over all classes.
        seed: with epoch and index, determines the augmentation.

    Raises:
        ConfigError: a folder is missing or empty, val/ has a class that train/ does not have, or a number
            cannot be used; with the file's name, when a file that is asked for is no image.
    """
    if channels not in MODES:
        raise ConfigError(f"dataset.channels is {channels}: give 1 for grey or 3 for colour.")
    at_least(1, image_size=image_size)
    resize = image_size if resize is None else resize
    if resize < image_size:
        raise ConfigError(f"dataset.resize is {resize}: give at least dataset.image_size, {image_size}.")
    tensor, top = to_tensor(mean, std, channels), root_folder(root, "train/ and val/")
    loader: Any = partial(open_picture, mode=MODES[channels])
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
    centred = [transforms.Resize(resize), transforms.CenterCrop(image_size)]
    drawn = [transforms.RandomResizedCrop(image_size), transforms.RandomHorizontalFlip()]
    halves = [
        Drawn(
            Subset(half, limited(len(half), limit, seed).tolist()),
            Transformed(transforms.Compose([*changes, tensor])),
            seed,
        )
        for half, changes in ((train, drawn if augment else centred), (test, centred))
    ]
    return Data(top.resolve().name, halves[0], halves[1], len(train.classes), train.classes)


def voc2012(
    root: str,
    image_size: int = 512,
    augment: bool = True,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """21 classes: float32 images (3, image_size, image_size), int64 masks (image_size, image_size).

    Training images are scaled by 0.5 to 2, cropped at random and flipped half of the time, with their masks.
    Test images are scaled down if larger than the square (VOC's fit 500 x 500). Padding is mean grey, and
    `IGNORED` in the mask, as are borders of objects.

    Args:
        augment: False: treat the training half like the test half.
        limit: the most images of each half, drawn by `seed`.
        seed: with epoch and index, determines the augmentation.

    Raises:
        ConfigError: a folder or file is missing, or a number cannot be used; with the file's name, when a
            picture or mask that is asked for cannot be used.
    """
    at_least(1, image_size=image_size)
    tensor, fill = to_tensor(mean, std), tuple(round(255 * each) for each in mean)
    folder = root_folder(root, VOC_LAYOUT)
    halves = []
    for name in ("train", "val"):
        try:
            half = VOCSegmentation(str(folder), "2012", name)
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"dataset.root is {root}, which must hold {VOC_LAYOUT} ({error}).") from error
        if not len(half):
            raise ConfigError(
                f"{folder} names no image of {name}: put one name on each line, without suffix."
            )
        chosen = Subset(half, limited(len(half), limit, seed).tolist())
        halves.append(Drawn(chosen, _Scenes(image_size, augment and name == "train", tensor, fill), seed))
    return Data("voc2012", halves[0], halves[1], len(VOC_CLASSES), VOC_CLASSES, metric="mean_iou")


@dataclass(frozen=True)
class _Scenes:
    """Make (picture, mask) a normalised image and its class indices."""

    size: int
    augment: bool
    tensor: Callable[[Any], Tensor]
    fill: tuple[int, ...]  # padding: mean grey

    def __call__(self, sample: tuple[Any, Any], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        classes = torch.from_numpy(np.array(sample[1]))
        if classes.ndim != 2 or bool(((classes >= len(VOC_CLASSES)) & (classes < BORDER)).any()):
            raise ConfigError(
                f"a mask has pixels other than classes 0 to {len(VOC_CLASSES) - 1} and {BORDER}: give the "
                "devkit's palette PNG."
            )
        with drawing_by(rng):
            picture, mask = self._changed(sample[0], classes[None])
        classes = mask.long().squeeze(0)
        return self.tensor(picture), classes.masked_fill(classes == BORDER, IGNORED)

    def _changed(self, picture: Image.Image, mask: Tensor) -> tuple[Image.Image, Tensor]:
        scale = float(torch.empty(()).uniform_(*SCALES)) if self.augment else 1.0
        if not self.augment:
            scale = min(1.0, self.size / max(picture.size))
        sides = [max(1, round(side * scale)) for side in (picture.height, picture.width)]
        picture, mask = v2.Resize(sides)(picture, Mask(mask))
        filling = {Image.Image: self.fill, Mask: BORDER}
        if not self.augment:
            return v2.Pad([0, 0, self.size - sides[1], self.size - sides[0]], filling)(picture, mask)
        cut = v2.RandomCrop(self.size, pad_if_needed=True, fill=filling)
        return v2.RandomHorizontalFlip()(*cut(picture, mask))
