"""Drawn data: any shape, no memory, and learnable exactly when asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from netsplit.data import records, synthetic
from netsplit.errors import ConfigError

KINDS = {"image": (2, 12, 10), "mask": (3, 12, 10), "tokens": (30,)}


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


def test_records_are_numbers_and_categories_that_say_the_class() -> None:
    data = records((2, 1), (10, 7), bag=3, num_classes=2, train=10**12)
    (pair, one, categories), target = data.train[5]
    assert (pair.shape, one.shape, categories.shape) == ((2,), (1,), (2, 3))
    assert (categories < torch.tensor([[10], [7]])).all()
    assert torch.equal(categories[0] % 2, target.expand(3))
    inputs, targets = data.shapes(4)
    assert [each.shape for each in (*inputs, targets)] == [(4, 2), (4, 1), (4, 2, 3), (4,)]
    alone, number = records((4,), (), num_classes=0).train[0]
    assert torch.equal(number, alone.mean(0, keepdim=True))
    with pytest.raises(ConfigError, match=r"dataset\.numbers is \[\]"):
        records((), ())
