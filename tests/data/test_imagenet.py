"""ImageNet's layout: real JPEGs, augmented in training and centred in the test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from netsplit.data import imagenet
from netsplit.errors import ConfigError
from tests.data.folders import WNIDS, make_imagenet

PLAIN = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_imagenet(tmp_path)


def test_classes_are_the_wnids_in_order_and_files_go_with_them(root: Path) -> None:
    data = imagenet(str(root), 32, 36, **PLAIN)
    assert tuple(data.classes) == WNIDS
    assert (len(data.train), len(data.test), data.num_classes) == (9, 3, 3)
    for half in (data.train, data.test):
        for image, target in (half[index] for index in range(len(half))):
            assert image.shape == (3, 32, 32)
            assert image.mean().item() * 255 == pytest.approx(47 + 80 * target.item(), abs=6)


def test_the_default_is_224_of_256_and_normalised(root: Path) -> None:
    image, _ = imagenet(str(root)).test[0]
    plain, _ = imagenet(str(root), **PLAIN).test[0]
    assert image.shape == (3, 224, 224)
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    torch.testing.assert_close(image * std + mean, plain, atol=1e-5, rtol=0)


def test_the_test_half_sees_the_middle(root: Path) -> None:
    pixels = np.zeros((40, 80, 3), dtype=np.uint8)
    pixels[10:30, 30:50] = 255  # half of the shorter side
    Image.fromarray(pixels).save(root / "val" / WNIDS[0] / "ILSVRC2012_val_00000000.JPEG")
    inner = imagenet(str(root), 16, 32, **PLAIN).test[0][0]
    assert (inner[:, 2:-2, 2:-2] > 0.9).all()
    whole = imagenet(str(root), 32, 32, **PLAIN).test[0][0]
    assert whole[:, :5].max() < 0.1
    assert whole[:, 16, 16].min() > 0.9


def test_a_corrupt_image_is_named(root: Path) -> None:
    file = root / "train" / WNIDS[1] / f"{WNIDS[1]}_1.JPEG"
    file.write_bytes(file.read_bytes()[:200])
    train = imagenet(str(root), 8, 8).train
    with pytest.raises(ConfigError, match=rf"cannot read .*{file.name} as an image \(.*\): mend or remove"):
        [train[index] for index in range(len(train))]


def test_what_cannot_be_used_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.resize is 200: give at least dataset\.image_size, 224"):
        imagenet(str(root), resize=200)
    with pytest.raises(ConfigError, match=r"dataset\.root is .*nowhere, which is not a folder"):
        imagenet(str(root / "nowhere"))
