"""What holds for every dataset: the same samples whoever loads them, and when."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from netsplit.data import IGNORED, Data, batches
from tests.data.conftest import Builder

NAMES = [
    "digits", "digits_segmentation", "text", "text_masked", "synthetic_image", "synthetic_mask",
    "synthetic_tokens", "cifar10", "imagenet", "imagefolder", "voc2012",
]  # fmt: skip
WITH_WORKERS = ["text_masked", "synthetic_image", "imagenet"]
CHANGING = {"text_masked", "cifar10", "imagenet", "voc2012"}

some_epochs = st.integers(0, 3)
few = settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

Pairs = list[tuple[Tensor, Tensor]]


def loaded(data: Data, size: int = 2, **options: int | bool) -> Pairs:
    return list(batches(data.train, size, **options))  # type: ignore[arg-type]


def same(one: Pairs, other: Pairs) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b)
        for left, right in zip(one, other, strict=True)
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
def test_targets_are_classes_or_ignored(builders: dict[str, Builder], name: str) -> None:
    data = builders[name]()
    assert len(data.classes) == data.num_classes
    for half in (data.train, data.test):
        for index in range(len(half)):
            inputs, targets = half[index]
            assert inputs.dtype == (torch.int64 if inputs.dim() == 1 else torch.float32)
            assert targets.dtype == torch.int64
            counted = targets[targets != IGNORED]
            assert len(counted)
            assert 0 <= counted.min() <= counted.max() < data.num_classes
            assert targets.shape in ((), inputs.shape[-targets.dim() :])


@pytest.mark.parametrize("name", NAMES)
@few
@given(epoch=some_epochs, seed=st.integers(0, 3), skip=st.integers(0, 3), size=st.integers(1, 3))
def test_a_resumed_epoch_goes_on_with_the_same_samples(
    builders: dict[str, Builder], name: str, epoch: int, seed: int, skip: int, size: int
) -> None:
    data = builders[name](seed=seed)
    whole = loaded(data, size, epoch=epoch, seed=seed)
    torch.manual_seed(epoch)
    rest = loaded(builders[name](seed=seed), size, epoch=epoch, seed=seed, skip=skip * size)
    assert same(rest, whole[skip:])


@pytest.mark.parametrize("name", WITH_WORKERS)
def test_workers_change_nothing(builders: dict[str, Builder], name: str) -> None:
    data = builders[name]()
    from_workers = loaded(data, epoch=2, seed=5, skip=2, workers=2)
    assert same(from_workers, loaded(data, epoch=2, seed=5, skip=2))


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_augmented_changes_from_epoch_to_epoch(builders: dict[str, Builder], name: str) -> None:
    data = builders[name]()
    epochs = [loaded(data, epoch=epoch, shuffle=False) for epoch in (0, 0, 1)]
    assert same(epochs[0], epochs[1])
    assert same(epochs[0], epochs[2]) == (name not in CHANGING)
