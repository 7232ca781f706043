"""ImageNet's layout: real JPEGs, augmented in training and centred in the test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from netsplit.data import imagenet
from netsplit.data.draw import generator_of
from netsplit.data.pictures import centre_crop, random_resized_crop
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


def test_the_test_half_sees_the_middle() -> None:
    pixels = np.zeros((40, 80, 3), dtype=np.uint8)
    pixels[10:30, 30:50] = 255  # half of the shorter side
    inner = np.array(centre_crop(Image.fromarray(pixels), shorter=32, size=16))
    assert inner.shape == (16, 16, 3)
    assert (inner[1:-1, 1:-1] == 255).all()
    whole = np.array(centre_crop(Image.fromarray(pixels), shorter=32, size=32))
    assert whole[:6].max() == 0
    assert whole[16, 16].min() == 255


@given(
    width=st.integers(1, 90), height=st.integers(1, 90), size=st.integers(1, 16), seed=st.integers(0, 10**6)
)
def test_a_random_part_lies_in_the_picture_and_has_the_allowed_ratio(
    width: int, height: int, size: int, seed: int
) -> None:
    class Spy(Image.Image):
        box: tuple[float, ...] = ()

        def resize(self, size: object, resample: object = None, box: object = None, **_: object) -> Spy:  # type: ignore[override]
            assert isinstance(box, tuple)
            self.box = box
            return self

    spy = Spy()
    spy._size = (width, height)
    random_resized_crop(spy, size, generator_of(seed))
    left, top, right, bottom = spy.box
    assert left >= 0
    assert top >= 0
    assert right <= width + 1e-9
    assert bottom <= height + 1e-9
    w, h = right - left, bottom - top
    assert w > 0
    assert h > 0
    # Rounded to pixels, a side may be half a pixel off.
    assert (w - 0.5) / (h + 0.5) <= 4 / 3 + 1e-9
    assert (w + 0.5) / (h - 0.5 if h > 0.5 else 1e-9) >= 3 / 4 - 1e-9


def test_flips_happen_half_of_the_time(root: Path) -> None:
    pixels = np.zeros((20, 20, 3), dtype=np.uint8)
    pixels[:, 10:] = 255
    file = root / "train" / WNIDS[0] / f"{WNIDS[0]}_0.JPEG"
    Image.fromarray(pixels).save(file, "JPEG")
    train = imagenet(str(root), 8, 8, **PLAIN).train
    seen = [train.at_epoch(epoch)[0][0] for epoch in range(100)]  # type: ignore[attr-defined]
    brighter_left = [bool(image[:, :, 0].mean() > image[:, :, -1].mean() + 0.1) for image in seen]
    brighter_right = [bool(image[:, :, -1].mean() > image[:, :, 0].mean() + 0.1) for image in seen]
    assert 20 < sum(brighter_left) < 60
    assert 20 < sum(brighter_right) < 60


def test_a_corrupt_image_is_named(root: Path) -> None:
    file = root / "train" / WNIDS[1] / f"{WNIDS[1]}_1.JPEG"
    file.write_bytes(file.read_bytes()[:200])
    train = imagenet(str(root), 8, 8).train
    with pytest.raises(ConfigError, match=rf"cannot read .*{file.name} as an image \(.*\): mend or remove"):
        [train[index] for index in range(len(train))]


def test_validation_images_without_folders_are_explained(root: Path) -> None:
    for folder in (root / "val").iterdir():
        for file in folder.iterdir():
            file.rename(root / "val" / file.name)
        folder.rmdir()
    with pytest.raises(ConfigError, match=r"val has no subfolder"):
        imagenet(str(root))


def test_what_cannot_be_used_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.resize is 200: give at least dataset\.image_size, 224"):
        imagenet(str(root), resize=200)
    with pytest.raises(ConfigError, match=r"dataset\.image_size is 0"):
        imagenet(str(root), image_size=0)
    with pytest.raises(ConfigError, match=r"dataset\.root is .*nowhere, which is not a folder"):
        imagenet(str(root / "nowhere"))
    with pytest.raises(ConfigError, match=r"dataset\.std is"):
        imagenet(str(root), std=(float("nan"),) * 3)


def test_names_of_any_alphabet_are_read(root: Path) -> None:
    (root / "train" / WNIDS[0] / f"{WNIDS[0]}_0.JPEG").rename(root / "train" / WNIDS[0] / "a größe 猫.JPEG")
    train = imagenet(str(root), 8, 8).train
    assert len([train[index] for index in range(len(train))]) == 9
