"""Pascal VOC 2012 segmentation, from a folder that holds ``VOCdevkit/VOC2012``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torch.utils.data import Subset
from torchvision.datasets import VOCSegmentation
from torchvision.transforms import v2
from torchvision.tv_tensors import Mask

from netsplit.data.dataset import IGNORED, Data, readable
from netsplit.data.draw import Drawn, limited
from netsplit.data.keys import at_least, root_folder
from netsplit.data.pictures import IMAGENET_MEAN, IMAGENET_STD, to_tensor
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


@readable
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
    at_least(1, image_size=image_size)
    tensor, fill = to_tensor(mean, std), tuple(round(255 * each) for each in mean)
    folder = root_folder(root, LAYOUT)
    halves = []
    for name in ("train", "val"):
        try:
            half = VOCSegmentation(str(folder), "2012", name)
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"dataset.root is {root}, which must hold {LAYOUT} ({error}).") from error
        if not len(half):
            raise ConfigError(f"{folder} names no image of {name}: put one name a line, without suffix.")
        chosen = Subset(half, limited(len(half), limit, seed).tolist())
        halves.append(Drawn(chosen, _Scenes(image_size, augment and name == "train", tensor, fill), seed))
    return Data("voc2012", halves[0], halves[1], len(CLASSES), CLASSES, metric="mean_iou")


@dataclass(frozen=True)
class _Scenes:
    """Makes (picture, mask) a normalised image and its classes; the mask's pixels are class indices."""

    size: int
    augment: bool
    tensor: Callable[[Any], Tensor]
    fill: tuple[int, ...]  # of what a picture does not fill: mean grey

    def __call__(self, sample: tuple[Image, Image], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        classes = torch.from_numpy(np.array(sample[1]))
        if classes.ndim != 2 or bool(((classes >= len(CLASSES)) & (classes < BORDER)).any()):
            raise ConfigError(
                f"a mask has other pixels than classes from 0 to {len(CLASSES) - 1}, or {BORDER}: give the "
                "devkit's palette PNG."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**63)))
            picture, mask = self._changed(sample[0], classes[None])
        classes = mask.long().squeeze(0)
        return self.tensor(picture), classes.masked_fill(classes == BORDER, IGNORED)

    def _changed(self, picture: Image, mask: Tensor) -> tuple[Image, Tensor]:
        scale = float(torch.empty(()).uniform_(*SCALES)) if self.augment else 1.0
        if not self.augment:
            scale = min(1.0, self.size / max(picture.size))
        sides = [max(1, round(side * scale)) for side in (picture.height, picture.width)]
        picture, mask = v2.Resize(sides)(picture, Mask(mask))
        filling = {Image: self.fill, Mask: BORDER}
        if not self.augment:
            return v2.Pad([0, 0, self.size - sides[1], self.size - sides[0]], filling)(picture, mask)
        cut = v2.RandomCrop(self.size, pad_if_needed=True, fill=filling)
        return v2.RandomHorizontalFlip()(*cut(picture, mask))
