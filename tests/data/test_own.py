"""`dataset._target_=...`: a dataset, a pair of them, a stream; in the words of the command line."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.utils.data import IterableDataset

from netsplit.data import Data, Loader, batches
from netsplit.data.reading.samples import Stream
from netsplit.session.comparison import experiment_of
from netsplit.session.request import Request
from runners._entry import entry
from tests.commands import Command
from tests.messages import tells

SEEN: dict[str, Data] = {}
MINE = """
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

class Mine(Dataset):
    classes = ["a", "b"]
    def __init__(self, count: int = 70, seed: int = 0):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return torch.rand(3, 32, 32), index % 2

class Flow(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.rand(3, 32, 32), 1

def halves(count: int = 5):
    return Mine(count), Mine(2)

class Counted(Mine):
    classes = 3

class Unnamed(Mine):
    classes = None

def named(**keys):
    return {"train": Mine(**keys), "validation": Mine(3)}

def columns():
    return [{"image": torch.rand(3), "label": 1}]
"""


def job(cfg: DictConfig) -> None:
    SEEN["data"] = experiment_of(Request(cfg), "mine", {}).data


@pytest.fixture
def run(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    (tmp_path / "lab_own_data.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)

    def call(target: str, *words: str) -> tuple[int, str]:
        SEEN.clear()
        given = ["tracking=none", "model=vgg19_small", f"dataset._target_=lab_own_data.{target}", *words]
        ended = command(entry()(job), "job", *given)
        return ended.code, ended.err

    return call


@pytest.mark.parametrize(
    ("words", "sizes", "how"),
    [
        (["Mine", "dataset.count=9", "dataset.workers=2"], (9, 0, 2), (2, 2, "auto")),
        (["named", "dataset.count=6"], (6, 3, 2), (0, 2, "auto")),
        (["Flow", "dataset.samples=40", "dataset.read_by=workers"], (40, 0, 0), (0, 2, "workers")),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_a_dataset_of_one_s_own_needs_no_yaml(
    run: Callable[..., tuple[int, str]],
    words: list[str],
    sizes: tuple[int, int, int],
    how: tuple[int, int, str],
) -> None:
    assert run(*words) == (0, "")
    data = SEEN["data"]
    assert (len(data.train), len(data.test), data.num_classes) == sizes
    assert (data.workers, data.prefetch, data.read_by) == how
    assert data.name == f"lab_own_data.{words[0]}"
    inputs, targets = next(batches(data.train, 4))
    assert (inputs.shape, targets.shape) == ((4, 3, 32, 32), (4,))


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["Flow"], ["Flow", "stream", "dataset.samples="]),
        (["columns"], ["sample 0", "image, label", "(input, target)", "dataset=huggingface"]),
        (["Mine", "dataset.cuont=3"], ["dataset.cuont", "did you mean count?"]),
    ],
)
def test_what_cannot_be_used_is_a_sentence(
    run: Callable[..., tuple[int, str]], words: list[str], facts: list[str]
) -> None:
    code, error = run(*words)
    assert code == 2
    assert tells(error, *facts)
    assert error.count("\n") == 1


class Told(IterableDataset[tuple[Tensor, int]]):
    """Says its number, its epoch, and what it draws."""

    def __init__(self, end: int | None = None) -> None:
        self.end, self.epoch = end, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for i in itertools.count() if self.end is None else range(self.end):
            yield torch.tensor([float(i), self.epoch, float(torch.rand(()))]), i


def test_a_stream_s_batches_depend_on_seed_and_epoch_alone() -> None:
    """Not on processes, on how much is skipped, nor on what others draw in between."""

    def read(seed: int, epoch: int, skip: int = 0, workers: int = 0) -> list[Tensor]:
        answer = []
        for inputs, _ in Loader(Stream(Told(), 10, seed), 3, drop_last=False, workers=workers).epoch(
            epoch, skip
        ):
            torch.rand(7)
            answer.append(inputs)
        return answer

    whole = read(1, 2)
    assert torch.cat(whole)[:, 0].tolist() == list(range(10))
    assert torch.cat(whole)[:, 1].tolist() == [2.0] * 10
    for other in (read(1, 2, workers=3), read(1, 2)):
        assert all(map(torch.equal, other, whole))
    assert all(map(torch.equal, read(1, 2, skip=6), whole[2:]))
    for other in (read(2, 2), read(1, 3)):
        assert not torch.equal(other[0][:, 2], whole[0][:, 2])
