"""VOC's layout: a picture and its mask stay together whatever is done to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from netsplit.data import IGNORED, Data, voc2012
from netsplit.errors import ConfigError
from tests.data.folders import make_voc

PLAIN = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_voc(tmp_path)


def file_of(root: Path, kind: str, number: int) -> Path:
    suffix = "jpg" if kind == "JPEGImages" else "png"
    return root / "VOCdevkit" / "VOC2012" / kind / f"2007_{number:06}.{suffix}"


def agrees(image: Tensor, mask: Tensor) -> float:
    """The fraction of pixels whose red, 10 x class, says the class of the mask."""
    counted = mask != IGNORED
    classes = (image[0] * 255 / 10).round().long()
    return float((classes == mask)[counted].double().mean())


def test_sizes_and_classes(root: Path) -> None:
    data = voc2012(str(root), 64)
    assert (len(data.train), len(data.test), data.num_classes, data.classes[15]) == (4, 2, 21, "person")
    image, mask = data.train[0]
    assert (image.shape, mask.shape, mask.dtype) == ((3, 64, 64), (64, 64), torch.int64)


def test_the_test_half_is_whole_and_the_rest_is_ignored(root: Path) -> None:
    image, mask = voc2012(str(root), 64, **PLAIN).test[0]
    path = file_of(root, "SegmentationClass", 4)
    expected = torch.from_numpy(np.array(Image.open(path)).astype(np.int64))
    expected[expected == 255] = IGNORED
    assert torch.equal(mask[:37, :50], expected)
    assert (mask[37:] == IGNORED).all()
    assert (mask[:, 50:] == IGNORED).all()
    assert (image[:, 37:] == 0).all()
    assert set(mask.unique().tolist()) == {IGNORED, 0, 5, 20}


def test_augmented_pictures_and_masks_stay_together(root: Path) -> None:
    size = 40
    train = voc2012(str(root), size, **PLAIN).train
    samples = [train.at_epoch(epoch)[index] for epoch in range(10) for index in range(4)]  # type: ignore[attr-defined]
    assert all(image.shape == (3, size, size) and mask.shape == (size, size) for image, mask in samples)
    counted = [(image, mask) for image, mask in samples if (mask != IGNORED).any()]
    assert len(counted) > 30
    assert sum(agrees(image, mask) for image, mask in counted) / len(counted) > 0.85
    # What lies outside the picture is ignored, and only that and the borders are.
    assert all(((image[1] > 0) >= (mask != IGNORED)).all() for image, mask in samples)


@pytest.mark.parametrize("kind", ["JPEGImages", "SegmentationClass"])
def test_a_missing_or_corrupt_file_is_named(root: Path, kind: str) -> None:
    data = voc2012(str(root), 32)
    file_of(root, kind, 0).write_bytes(b"broken")
    file_of(root, kind, 1).unlink()
    for index in (0, 1):
        with pytest.raises(
            ConfigError, match=rf"cannot read .*{file_of(root, kind, index).name} as an image"
        ):
            data.train[index]


def test_masks_that_are_none_are_named(root: Path) -> None:
    data: Data = voc2012(str(root), 32)
    masks = [file_of(root, "SegmentationClass", number) for number in range(3)]
    Image.new("RGB", (50, 37)).save(masks[0])
    Image.new("L", (50, 37), 21).save(masks[1])
    Image.new("L", (49, 37)).save(masks[2])
    for index, reason in enumerate(("colours instead of class indices", "has a class 21", "its picture")):
        with pytest.raises(ConfigError, match=rf"{masks[index].name} .*{reason}"):
            data.train[index]


def test_a_layout_that_is_another_is_explained(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.root is .*, which must hold VOCdevkit/VOC2012"):
        voc2012(str(root / "VOCdevkit"))
