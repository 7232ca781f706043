"""Checks of the keys and folders that several datasets have."""

from __future__ import annotations

from pathlib import Path

from netsplit.errors import ConfigError

__all__ = ["at_least", "check_common", "existing_file", "existing_folder", "root_folder"]


def at_least(least: int, **values: int | None) -> None:
    """Refuse a value below `least`; null passes.

    Raises:
        ConfigError: names the key `dataset.<name of the argument>`.
    """
    for key, value in values.items():
        if value is not None and value < least:
            raise ConfigError(f"dataset.{key} is {value}: give at least {least}.")


def check_common(limit: int | None, workers: int, prefetch: int, seed: int, **sizes: int) -> None:
    """Check the keys that nearly every dataset has, and `sizes` that are at least 1.

    Raises:
        ConfigError: one of them cannot be used.
    """
    at_least(1, **sizes, limit=limit, prefetch=prefetch)
    at_least(0, workers=workers, seed=seed)


def root_folder(root: str, holds: str) -> Path:
    """The folder that the user gave.

    Raises:
        ConfigError: it is not one; the sentence says what it must hold.
    """
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"dataset.root is {root}, which is not a folder: give one that holds {holds}.")
    return folder


def existing_folder(folder: Path, holds: str) -> Path:
    """The folder itself.

    Raises:
        ConfigError: it is not there.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not there: dataset.root must hold {holds}.")
    return folder


def existing_file(file: Path, holds: str) -> Path:
    """The file itself.

    Raises:
        ConfigError: it is not there.
    """
    if not file.is_file():
        raise ConfigError(f"{file} is not there: dataset.root must hold {holds}.")
    return file
