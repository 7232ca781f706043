"""Digits on a canvas: every pixel has the class of the digit that is seen there."""

from __future__ import annotations

import torch
from torch import Tensor

from netsplit.data import Data, digits, digits_segmentation
from netsplit.data.sets.digits import INK, MEAN, STD, digits_split


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


def tensors(data: Data) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (*data.train[:], *data.test[:])  # type: ignore[index,return-value]


def test_shapes_and_sizes() -> None:
    data = digits()
    images, targets, test_images, _ = tensors(data)
    assert images.shape == (1437, 3, 32, 32)
    assert test_images.shape == (360, 3, 32, 32)
    assert (images.dtype, targets.dtype) == (torch.float32, torch.int64)
    assert data.num_classes == len(data.classes) == 10
    assert "1437 train" in data.summary()


def test_no_image_is_in_both_halves() -> None:
    images, _, test_images, _ = tensors(digits(image_size=8, channels=1))
    both = torch.cat([images, test_images]).flatten(1)
    assert len(both.unique(dim=0)) == len(both)
