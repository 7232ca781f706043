"""Drawn data: any shape, no memory, and learnable exactly when asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.data import synthetic
from netsplit.errors import ConfigError

KINDS = {"image": (2, 12, 10), "mask": (3, 12, 10), "tokens": (30,)}


@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    sides=st.tuples(*[st.integers(1, 9)] * 3),
    classes=st.integers(1, 12),
    learnable=st.booleans(),
)
def test_any_shape_and_number_of_classes(
    kind: Any, sides: tuple[int, ...], classes: int, learnable: bool
) -> None:
    shape = sides if kind != "tokens" else sides[:1]
    data = synthetic(kind, shape, classes, learnable, train=3, test=2)
    for inputs, targets in (data.train[2], data.test[1]):
        assert inputs.shape == shape
        assert targets.shape == {"image": (), "mask": shape[1:], "tokens": shape}[kind]
        assert 0 <= targets.min() <= targets.max() < classes
        assert torch.isfinite(inputs).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_that_of_seed_half_and_index(kind: Any) -> None:
    small = synthetic(kind, KINDS[kind], train=5)
    large = synthetic(kind, KINDS[kind], train=10**12, test=10**9)
    assert len(large.train) == 10**12
    assert torch.equal(small.train[4][0], large.train[4][0])
    others = (large.train[5], large.test[4], synthetic(kind, KINDS[kind], seed=1).train[4])
    assert not any(torch.equal(small.train[4][0], other[0]) for other in others)
    with pytest.raises(IndexError):
        small.train[5]


def accuracy_of_centroids(learnable: bool) -> float:
    data = synthetic("image", (1, 16, 16), 5, learnable, train=100, test=100)
    images, targets = (
        torch.stack(column) for column in zip(*(data.train[i] for i in range(100)), strict=True)
    )
    centroids = torch.stack([images[targets == k].mean(0) for k in range(5)]).flatten(1)
    tests, wanted = (torch.stack(column) for column in zip(*(data.test[i] for i in range(100)), strict=True))
    nearest = torch.cdist(tests.flatten(1), centroids).argmin(1)
    return float((nearest == wanted).double().mean())


def test_images_say_their_class_only_when_learnable() -> None:
    assert accuracy_of_centroids(True) > 0.95
    assert accuracy_of_centroids(False) < 0.4


def accuracy_of_colours(learnable: bool) -> float:
    data = synthetic("mask", (3, 16, 16), 4, learnable, train=20, test=20)

    def pixels(half: Any) -> Any:
        pairs = [half[i] for i in range(20)]
        return (
            torch.cat([image.flatten(1).T for image, _ in pairs]),
            torch.cat([mask.flatten() for _, mask in pairs]),
        )

    colours, targets = pixels(data.train)
    centroids = torch.stack([colours[targets == k].mean(0) for k in range(4)])
    tests, wanted = pixels(data.test)
    return float((torch.cdist(tests, centroids).argmin(1) == wanted).double().mean())


def test_pixels_say_their_class_only_when_learnable() -> None:
    assert accuracy_of_colours(True) > 0.7
    assert accuracy_of_colours(False) < 0.35


def accuracy_of_followers(learnable: bool) -> float:
    data = synthetic("tokens", (50,), 7, learnable, train=60, test=20)
    counts = torch.zeros(7, 7)
    for i in range(60):
        inputs, targets = data.train[i]
        counts.index_put_((inputs, targets), torch.ones(50), accumulate=True)
    follower = counts.argmax(1)
    tests = [data.test[i] for i in range(20)]
    return float(
        torch.stack([(follower[inputs] == targets).double().mean() for inputs, targets in tests]).mean()
    )


def test_a_token_says_the_next_only_when_learnable() -> None:
    assert accuracy_of_followers(True) == pytest.approx(0.9 + 0.1 / 7, abs=0.03)
    assert accuracy_of_followers(False) < 0.25


def test_mask_patches_are_of_one_class() -> None:
    mask = synthetic("mask", (1, 8, 8), 50).train[0][1]
    assert torch.equal(mask, mask[::2, ::2].repeat_interleave(2, 0).repeat_interleave(2, 1))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"kind": "video"}, r"dataset\.kind is 'video': give one of image, mask, tokens"),
        ({"shape": (3, 8)}, r"dataset\.shape is \[3, 8\]: give \[channels, height, width\] for kind image"),
        ({"kind": "tokens"}, r"dataset\.shape is .*: give \[length\] for kind tokens"),
        ({"shape": (3, 0, 8)}, r"dataset\.shape is"),
        ({"num_classes": 0}, r"dataset\.num_classes is 0"),
        ({"train": 0}, r"dataset\.train is 0"),
        ({"test": 0}, r"dataset\.test is 0"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        synthetic(**arguments)
