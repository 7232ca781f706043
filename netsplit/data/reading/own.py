"""A user's own datasets as `Data`: a `torch.utils.data.Dataset`, a stream, or two of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import length_hint
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from netsplit.data.dataset import Data, Samples
from netsplit.data.keys import ReadingKeys
from netsplit.data.reading.samples import KeyedSamples, Stream, collated, pair_of
from netsplit.errors import ConfigError, NetSplitError, brief

__all__ = ["as_data"]

_HALVES = (("train", "training"), ("test", "validation", "val"))


def as_data(source: Any, name: str, keys: ReadingKeys) -> Data:
    """The halves of what a dataset's target returned; a single dataset is the training half.

    Raises:
        ConfigError: no dataset, a stream of unknown length, or samples that are no pairs.
    """
    if isinstance(source, Data):
        if keys.samples is not None:
            raise ConfigError("dataset.samples is only for streams: leave it out.")
        return source.read(keys.read_by, keys.workers, keys.prefetch)
    train, test = _halves(source)
    halves = [_samples(half, keys) for half in (train, test) if half is not None]
    _check_sample(halves[0], keys.seed)
    count, classes = _classes(train)
    data = Data(name, halves[0], halves[1] if test is not None else (), count, classes)
    return data.read(keys.read_by, keys.workers, keys.prefetch)


def _classes(train: Any) -> tuple[int, list[str]]:
    """Number and names of classes, by a dataset's `classes`, if that is a list or a number."""
    classes = getattr(train, "classes", ())
    if isinstance(classes, int):
        return max(classes, 0), []
    names = list(map(str, classes)) if isinstance(classes, Collection) else []
    return len(names), names


def _halves(source: Any) -> tuple[Any, Any]:
    if isinstance(source, Mapping):
        train, test = (next((source[key] for key in names if key in source), None) for names in _HALVES)
        if train is None:
            raise ConfigError(
                f"dataset._target_ returns a mapping of {', '.join(map(str, source))}: name one 'train'."
            )
        return train, test
    pair = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    for half in pair:
        sized = hasattr(half, "__getitem__") and hasattr(half, "__len__")
        if half is not None and (isinstance(half, str | bytes | Tensor) or not (_is_stream(half) or sized)):
            raise ConfigError(
                f"dataset._target_ returns {brief(source)}: give a torch.utils.data.Dataset, a pair of "
                "them (train, test), or a netsplit.data.Data."
            )
    return pair


def _is_stream(value: Any) -> bool:
    iterated = hasattr(value, "__iter__") and not hasattr(value, "__getitem__")
    return isinstance(value, (IterableDataset, DataLoader)) or iterated


def _samples(half: Any, keys: ReadingKeys) -> Samples:
    if isinstance(half, DataLoader):
        raise ConfigError(
            "dataset._target_ returns a DataLoader, which makes its own batches: give its dataset, and "
            "dataset.workers=<its num_workers>."
        )
    if not _is_stream(half):
        samples: Samples = half
        return samples
    count = keys.samples if keys.samples is not None else length_hint(half, -1)
    if count < 0:
        raise ConfigError(
            f"{type(half).__name__} is a stream without a length: set how many samples make an epoch, "
            "dataset.samples=<number>."
        )
    if not isinstance(half, Sequence) and iter(half) is half:
        raise ConfigError(
            f"{type(half).__name__} can be read only once, but every epoch reads it anew: give a "
            "torch.utils.data.IterableDataset."
        )
    return Stream(half, count, keys.seed)


def _check_sample(samples: Samples, seed: int) -> None:
    if not len(samples):
        raise ConfigError("dataset._target_ returns a dataset without samples.")
    (sample,) = KeyedSamples(samples, seed).__getitems__([(0, 0)])
    if isinstance(sample, list | tuple) and len(sample) == 2:
        try:
            pair_of(collated([sample]))
        except NetSplitError as error:
            raise ConfigError(f"sample 0 of the dataset cannot be used: {error}") from error
    elif hasattr(sample, "sentence"):
        raise ConfigError(f"the dataset cannot be used: {sample.sentence}")
    else:
        names = (
            f"a mapping of {', '.join(map(str, sample))}" if isinstance(sample, Mapping) else brief(sample)
        )
        raise ConfigError(
            f"sample 0 of the dataset is {names}: give pairs (input, target), or name Hugging Face columns "
            "with dataset=huggingface."
        )
