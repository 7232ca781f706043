"""A dataset's record says what it is: the same data the same digest, other data another."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch.utils.data import TensorDataset

from netsplit.data import Data
from netsplit.tracking.datasets import records_of


def data(seed: int = 0, count: int = 8) -> Data:
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, 4, 4, generator=draw)
    halves = [TensorDataset(images, torch.arange(count) % 2) for _ in range(2)]
    return Data("dots", halves[0], halves[1], 2, ("even", "odd"))


def test_both_halves_are_described() -> None:
    training, evaluation = records_of(data(), {"_target_": "netsplit.data.dots", "seed": 0})
    assert [each.tags[0].value for each in (training, evaluation)] == ["training", "evaluation"]
    assert json.loads(str(training.dataset.profile)) == {
        "num_samples": 8,
        "num_classes": 2,
        "input": "float32 [3, 4, 4]",
        "target": "int64 []",
    }
    assert json.loads(training.dataset.source) == {"_target_": "netsplit.data.dots", "seed": 0}
    assert len(training.dataset.digest) == 8


@pytest.mark.parametrize("other", [data(seed=1), data(count=9), replace(data(), classes=("a", "b"))])
def test_other_data_has_another_digest(other: Data) -> None:
    known = [each.dataset.digest for each in records_of(data())]
    assert known == [each.dataset.digest for each in records_of(data())]
    assert records_of(other)[0].dataset.digest != known[0]


def test_passwords_are_hidden() -> None:
    (record, _) = records_of(data(), {"root": "https://me:secret@host/data"})
    assert "secret" not in record.dataset.source
