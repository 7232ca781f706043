"""A user's own datasets as `Data`: a `torch.utils.data.Dataset`, a stream, or two of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from netsplit.data.dataset import Data, Samples
from netsplit.data.keys import ReadingKeys
from netsplit.data.reading.samples import KeyedSamples, collated, pair_of
from netsplit.data.reading.stream import Stream
from netsplit.errors import ConfigError, NetSplitError

__all__ = ["as_data"]

_HALVES = (("train", "training"), ("test", "validation", "val"))
_HOW = "give a torch.utils.data.Dataset, a pair of them (train, test), or a netsplit.data.Data"


def as_data(source: Any, name: str, keys: ReadingKeys) -> Data:
    """What a dataset's target made, as the two halves of a dataset; one dataset alone is all training.

    Args:
        name: of the dataset, where it does not say its own.

    Raises:
        ConfigError: it is no dataset, a stream of unknown length, or its samples are no pairs.
    """
    if isinstance(source, Data):
        if keys.samples is not None:
            raise ConfigError(
                "dataset.samples is the length of a stream's epoch, and this is none: leave it out."
            )
        return source.read(keys.read_by, keys.workers, keys.prefetch)
    train, test = _halves(source)
    halves = [_samples(half, keys) for half in (train, test) if half is not None]
    _check_sample(halves[0], keys.seed)
    count, classes = _classes(train)
    data = Data(name, halves[0], halves[1] if test is not None else (), count, classes)
    return data.read(keys.read_by, keys.workers, keys.prefetch)


def _classes(train: Any) -> tuple[int, list[str]]:
    """How many a dataset says it has, and their names: `classes` is often a list of these, or a number."""
    classes = getattr(train, "classes", ())
    if isinstance(classes, int) and not isinstance(classes, bool):
        return max(classes, 0), []
    names = (
        [str(each) for each in classes]
        if isinstance(classes, Collection) and not isinstance(classes, str)
        else []
    )
    return len(names), names


def _halves(source: Any) -> tuple[Any, Any]:
    if isinstance(source, Mapping):
        train, test = (next((source[key] for key in names if key in source), None) for names in _HALVES)
        if train is None:
            raise ConfigError(
                f"dataset._target_ makes a mapping of {', '.join(map(str, source))}: name one 'train'."
            )
        return train, test
    if isinstance(source, tuple) and len(source) == 2 and all(_is_dataset(each) for each in source):
        return source
    if _is_dataset(source):
        return source, None
    raise ConfigError(f"dataset._target_ makes {_shown(source)}: {_HOW}.")


def _is_dataset(value: Any) -> bool:
    if isinstance(value, (str, bytes, Tensor, Mapping)):
        return False
    return _is_stream(value) or (hasattr(value, "__getitem__") and hasattr(value, "__len__"))


def _is_stream(value: Any) -> bool:
    if isinstance(value, (IterableDataset, DataLoader)):
        return True
    return hasattr(value, "__iter__") and not hasattr(value, "__getitem__")


def _samples(half: Any, keys: ReadingKeys) -> Samples:
    if isinstance(half, DataLoader):
        raise ConfigError(
            "dataset._target_ makes a DataLoader, whose batches are its own: give its dataset, and "
            "dataset.workers=<its num_workers>."
        )
    if not _is_stream(half):
        samples: Samples = half
        return samples
    count = keys.samples if keys.samples is not None else _length(half)
    if count is None:
        raise ConfigError(
            f"{type(half).__name__} is a stream that has no length: say how many samples make an epoch, "
            "dataset.samples=<number>."
        )
    if not isinstance(half, Sequence) and iter(half) is half:
        raise ConfigError(
            f"{type(half).__name__} can be gone through once only, and every epoch begins anew: give a "
            "torch.utils.data.IterableDataset."
        )
    return Stream(half, count, keys.seed)


def _length(stream: Any) -> int | None:
    try:
        return len(stream)
    except TypeError:
        return None


def _check_sample(samples: Samples, seed: int) -> None:
    if not len(samples):
        raise ConfigError("dataset._target_ makes a dataset without samples.")
    (sample,) = KeyedSamples(samples, seed).__getitems__([(0, 0)])
    if isinstance(sample, list | tuple) and len(sample) == 2:
        try:
            pair_of(collated([sample]))
        except NetSplitError as error:
            raise ConfigError(f"sample 0 of the dataset cannot be used: {error}") from error
    elif hasattr(sample, "sentence"):
        raise ConfigError(f"the dataset cannot be used: {sample.sentence}")
    else:
        raise ConfigError(
            f"sample 0 of the dataset is {_shown(sample)}: give pairs (input, target); those of Hugging Face "
            "are columns, and dataset=huggingface names them."
        )


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a mapping of {', '.join(map(str, value))}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:80]}…"
