"""Every dataset that there is, small."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from netsplit.data import (
    Data,
    cifar10,
    digits,
    digits_segmentation,
    imagefolder,
    synthetic,
    text,
    voc2012,
)
from tests.data.folders import make_cifar, make_imagenet, make_text, make_voc, trust_cifar

Builder = Callable[..., Data]


@pytest.fixture(scope="session")
def builders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Builder]]:
    """Name -> a builder that takes `limit`, `seed` and the like; every half has three samples or more."""
    root = tmp_path_factory.mktemp("data")
    images, voc = str(make_imagenet(root / "imagenet")), str(make_voc(root / "voc", 5, 3))
    cifar, texts = str(make_cifar(root / "cifar", 3)), str(make_text(root / "text", 10, 200))
    patch = pytest.MonkeyPatch()
    trust_cifar(patch, root / "cifar")
    yield {
        "digits": lambda **keys: digits(8, 1, **{"limit": 20, **keys}),
        "digits_segmentation": lambda **keys: digits_segmentation(24, 10, 2, 1, 7, 5, **keys),
        "text": lambda **keys: text(16, root=texts, **{"limit": 9, **keys}),
        "text_masked": lambda **keys: text(16, masked=True, root=texts, **{"limit": 9, **keys}),
        "synthetic_image": lambda **keys: synthetic("image", (2, 6, 5), 4, train=8, test=4, **keys),
        "synthetic_mask": lambda **keys: synthetic("mask", (2, 6, 5), 4, train=8, test=4, **keys),
        "synthetic_tokens": lambda **keys: synthetic("tokens", (7,), 5, train=8, test=4, **keys),
        "cifar10": lambda **keys: cifar10(cifar, **keys),
        "imagenet": lambda **keys: imagefolder(images, 12, resize=16, augment=True, **keys),
        "imagefolder": lambda **keys: imagefolder(images, 12, **keys),
        "voc2012": lambda **keys: voc2012(voc, 32, **keys),
    }
    patch.undo()
