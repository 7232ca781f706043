"""CIFAR-10's own pickles: read, cut and flipped, and nothing in them is run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from netsplit.data import cifar10
from netsplit.errors import ConfigError
from tests.data.folders import make_cifar, trust_cifar

PLAIN = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = make_cifar(tmp_path)
    trust_cifar(monkeypatch, made)
    return made


def batch(root: Path, name: str) -> Path:
    return root / "cifar-10-batches-py" / name


def test_the_batches_come_in_order_with_their_labels(root: Path) -> None:
    data = cifar10(str(root), augment=False, **PLAIN)
    assert (len(data.train), len(data.test), data.num_classes) == (30, 6, 10)
    assert data.classes[:2] == ("airplane", "automobile")
    for half, first, name in ((data.train, 12, "data_batch_3"), (data.test, 0, "test_batch")):
        content = pickle.loads(batch(root, name).read_bytes())
        for i in range(6):
            image, target = half[first + i]
            assert target.item() == content["labels"][i]
            expected = torch.from_numpy(content["data"][i].reshape(3, 32, 32).astype(np.float32))
            torch.testing.assert_close(image * 255, expected)


def test_augmented_images_are_moved_by_up_to_four_pixels_and_flipped(root: Path) -> None:
    plain = cifar10(str(root), augment=False, **PLAIN).train[0][0]
    train = cifar10(str(root), **PLAIN).train
    padded = torch.nn.functional.pad(plain, (4, 4, 4, 4))
    places = {
        (y, x, flipped): part.flip(-1) if flipped else part
        for y in range(9)
        for x in range(9)
        for part in (padded[:, y : y + 32, x : x + 32],)
        for flipped in (False, True)
    }
    offsets = []
    for epoch in range(60):
        image = train.at_epoch(epoch)[0][0]  # type: ignore[attr-defined]
        offsets += [place for place, expected in places.items() if torch.equal(image, expected)]
    assert len(offsets) == 60
    assert {y for y, _, _ in offsets} == {x for _, x, _ in offsets} == set(range(9))
    assert 15 < sum(flipped for *_, flipped in offsets) < 45


def test_a_pickle_cannot_run_code(root: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {marker}",)

    batch(root, "data_batch_2").write_bytes(pickle.dumps({"data": Evil()}))
    with pytest.raises(ConfigError, match="does not hold"):
        cifar10(str(root))
    assert not marker.exists()
