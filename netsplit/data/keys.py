"""Keys of several datasets, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from netsplit.errors import ConfigError

__all__ = ["ReadBy", "ReadingKeys", "at_least", "root_folder"]

ReadBy = Literal["auto", "workers", "controller"]


def at_least(least: int, **values: int | None) -> None:
    """Raises ConfigError: a value is below `least`; names its key `dataset.<argument>`. None passes."""
    for key, value in values.items():
        if value is not None and value < least:
            raise ConfigError(f"dataset.{key} is {value}: give at least {least}.")


@dataclass(frozen=True)
class ReadingKeys:
    """How a dataset is read: keys of `dataset` beside those of its target.

    Args:
        workers: loading processes of every process that reads; None: as the dataset says, or 0.
        prefetch: batches that each of them loads ahead; None: as the dataset says, or 2.
        read_by: see `Data`; None: as the dataset says, or auto.
        samples: number of samples in a stream's epoch; None: its length, if it has one.
        seed: of random samples.
    """

    workers: int | None = None
    prefetch: int | None = None
    read_by: ReadBy | None = None
    samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(0, workers=self.workers)
        at_least(1, prefetch=self.prefetch, samples=self.samples)


def root_folder(root: str, holds: str) -> Path:
    """The user's folder; raises ConfigError, naming what it must hold, if it is none."""
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"dataset.root is {root}, which is not a folder: give one that holds {holds}.")
    return folder
