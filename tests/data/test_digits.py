"""Digits: two halves of scaled pictures."""

from __future__ import annotations

import torch
from torch import Tensor

from netsplit.data import Data, digits


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
