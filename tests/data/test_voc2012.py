"""VOC's layout: a picture and its mask stay together whatever is done to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from netsplit.data import IGNORED, voc2012
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
