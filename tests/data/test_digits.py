"""The digits: real, split fairly and always the same way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from netsplit.data import Data, digits
from netsplit.errors import ConfigError


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


def test_the_train_half_is_normalised() -> None:
    images = tensors(digits())[0]
    assert images.mean().item() == pytest.approx(0, abs=1e-4)
    assert images.std().item() == pytest.approx(1, abs=1e-3)


def test_the_split_is_stratified() -> None:
    _, targets, _, test_targets = tensors(digits())
    fraction = test_targets.bincount(minlength=10) / (
        targets.bincount(minlength=10) + test_targets.bincount()
    )
    assert ((fraction - 0.2).abs() < 0.01).all()


def test_one_seed_gives_one_split_and_another_another() -> None:
    first, same, other = (tensors(digits(image_size=8, channels=1, seed=seed)) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    assert not torch.equal(first[3], other[3])


def test_no_image_is_in_both_halves() -> None:
    images, _, test_images, _ = tensors(digits(image_size=8, channels=1))
    both = torch.cat([images, test_images]).flatten(1)
    assert len(both.unique(dim=0)) == len(both)


def test_channels_repeat_the_grey_plane() -> None:
    images = tensors(digits(limit=4))[0]
    assert torch.equal(images[:, 0], images[:, 2])


def test_a_limit_shortens_both_halves_and_keeps_the_normalisation() -> None:
    data, whole = digits(limit=50), digits()
    assert (len(data.train), len(data.test)) == (50, 50)
    assert torch.equal(tensors(data)[0], tensors(whole)[0][:50])


@pytest.mark.parametrize("arguments", [{"image_size": 4}, {"channels": 0}, {"limit": 0}])
def test_numbers_that_cannot_be_used_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=rf"dataset\.{next(iter(arguments))} is"):
        digits(**arguments)  # type: ignore[arg-type]
