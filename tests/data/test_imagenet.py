"""ImageNet's layout: real JPEGs, augmented in training and centred in the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from netsplit.data import imagefolder
from tests.data.folders import WNIDS, make_imagenet

PLAIN = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_imagenet(tmp_path)


def test_classes_are_the_wnids_in_order_and_files_go_with_them(root: Path) -> None:
    data = imagefolder(str(root), 32, resize=36, augment=True, **PLAIN)
    assert tuple(data.classes) == WNIDS
    assert (len(data.train), len(data.test), data.num_classes) == (9, 3, 3)
    for half in (data.train, data.test):
        for image, target in (half[index] for index in range(len(half))):
            assert image.shape == (3, 32, 32)
            assert image.mean().item() * 255 == pytest.approx(47 + 80 * target.item(), abs=6)
