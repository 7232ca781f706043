"""Digits on a canvas: every pixel has the class of the digit that is seen there."""

from __future__ import annotations

import pytest
import torch

from netsplit.data import digits_segmentation
from netsplit.data.sets.digits import digits_split
from netsplit.data.sets.digits_segmentation import INK, MEAN, STD
from netsplit.errors import ConfigError


def test_shapes_and_classes() -> None:
    data = digits_segmentation()
    image, mask = data.train[0]
    assert (image.shape, mask.shape) == ((3, 64, 64), (64, 64))
    assert torch.equal(image[0], image[2])
    assert (len(data.train), len(data.test), data.num_classes, data.classes[1]) == (1024, 256, 11, "0")


def test_the_mask_is_where_the_ink_is() -> None:
    data = digits_segmentation(48, 16, 3, channels=1, train=20, test=20)
    for half in (data.train, data.test):
        for image, mask in (half[index] for index in range(20)):
            assert torch.equal(mask > 0, image[0] * STD + MEAN >= INK - 1e-4)


def test_a_single_digit_is_one_of_its_half() -> None:
    """With one digit of the canvas's size, the picture is the digit, and in no other half."""
    data = digits_segmentation(12, 12, 1, channels=1, train=30, test=30, seed=3)
    images, targets, *halves = digits_split(12, 3)
    for half, own in zip((data.train, data.test), halves, strict=True):
        inked = torch.where(images[own, 0] >= INK, images[own, 0], 0.0)
        for image, mask in (half[index] for index in range(30)):
            distance = (inked - (image[0] * STD + MEAN)).abs().amax((1, 2))
            nearest = int(distance.argmin())
            assert distance[nearest] < 1e-5
            assert set(mask.unique().tolist()) <= {0, int(targets[own][nearest]) + 1}


def test_all_classes_and_many_places_occur() -> None:
    train = digits_segmentation(40, 12, 2, 1, train=200).train
    masks = torch.stack([train[index][1] for index in range(200)])
    assert set(masks.unique().tolist()) == set(range(11))
    assert (masks > 0).any(0)[6:-6, 6:-6].all()


def test_pictures_are_about_normalised() -> None:
    train = digits_segmentation(train=64).train
    images = torch.stack([train[index][0] for index in range(64)])
    assert images.mean().abs() < 0.2
    assert 0.8 < images.std() < 1.2


def test_numbers_cost_no_memory_and_pictures_are_those_of_their_index() -> None:
    large = digits_segmentation(16, 8, train=10**9).train
    small = digits_segmentation(16, 8, train=10).train
    assert len(large) == 10**9
    assert torch.equal(large[7][0], small[7][0])
    assert not torch.equal(large[7][0], large[10**9 - 1][0])
    with pytest.raises(IndexError):
        small[10]


def test_the_seed_fixes_the_pictures() -> None:
    first, same, other = (digits_segmentation(seed=seed).train[5][0] for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("key", ["digits_per_image", "channels", "train", "test"])
def test_numbers_that_cannot_be_used_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"dataset\.{key} is 0: give at least 1"):
        digits_segmentation(**{key: 0})
    with pytest.raises(ConfigError, match=r"dataset\.digit_size is 7"):
        digits_segmentation(digit_size=7)
    with pytest.raises(
        ConfigError, match=r"dataset\.image_size is 10: give at least dataset\.digit_size, 20"
    ):
        digits_segmentation(image_size=10)
