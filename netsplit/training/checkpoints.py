"""The checkpoints of one training: where they are, when one is due, which are kept.

<folder>/
    000001-step-22/      whole; the number rises with every save
    000002-step-44/
    .000003-step-66.x/   being written, or left by a training that was killed: never read, removed
    .lock                held while a training writes here
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, Self

from netsplit.errors import ConfigError, NetSplitError
from netsplit.files import is_complete
from netsplit.settings import Settings

__all__ = [
    "Checkpoints", "newest", "opened_checkpoints", "origin_checkpoint", "stable_folder",
]  # fmt: skip

_NAME = re.compile(r"(\d{6,})-step-\d+")
_TEMPORARY = re.compile(r"\.\d{6,}-step-\d+\..*")
# What decides how a training goes; not where it runs, nor for how long.
_OF_THE_TRAINING = (
    "model", "dataset", "loss", "optimizer", "scheduler", "schedule", "batch_size", "accumulate", "clip_norm",
    "autocast", "ema_decay", "seed",
)  # fmt: skip

_OF_READING = ("workers", "prefetch", "read_by")  # of `dataset`: the batches are the same


class Savable(Protocol):
    """What can save a checkpoint, such as `ParallelModel`."""

    def save_checkpoint(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None: ...


class Checkpoints:
    """A folder of checkpoints, held by one training at a time.

    Args:
        every_epochs: a checkpoint is due after so many epochs.
        every_iterations: and after so many optimiser steps; with either, after the last epoch too.
        keep: the newest so many are kept.
        resume: go on from the newest that is there, else from `origin`.

    Raises:
        NetSplitError: another training holds the folder, or it has checkpoints and `resume` is False.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every_epochs: int | None = 1,
        every_iterations: int | None = None,
        keep: int = 2,
        resume: bool = False,
        origin: Path | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.every_epochs = every_epochs
        self.every_iterations = every_iterations
        self.keep = keep
        self.origin = origin
        self._lock = self._locked()
        try:
            self._clean()
            if newest(self.folder) is not None and not resume:
                raise ConfigError(
                    f"checkpoint.folder '{self.folder}' has checkpoints of an earlier training: continue "
                    "it with resume=auto, or choose another folder."
                )
        except BaseException:
            self.close()
            raise

    @property
    def newest(self) -> Path | None:
        """The checkpoint to resume from: this folder's newest, else the origin."""
        return newest(self.folder) or self.origin

    def due_after_step(self, step: int) -> bool:
        return self.every_iterations is not None and step % self.every_iterations == 0

    def due_after_epoch(self, epochs: int, last: bool) -> bool:
        if self.every_epochs is None:
            return last and self.every_iterations is not None
        return last or epochs % self.every_epochs == 0

    def save(self, model: Savable, step: int, extra: Mapping[str, Any]) -> Path:
        """Write a checkpoint, then remove the oldest; raises NetSplitError on failure."""
        whole = _whole(self.folder)
        number = 1 + max((_number(place) for place in whole), default=0)
        place = self.folder / f"{number:06d}-step-{step}"
        model.save_checkpoint(place, extra)
        for old in whole[: len(whole) + 1 - self.keep]:
            _remove(old)
        return place

    def close(self) -> None:
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _locked(self) -> int:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise NetSplitError(
                f"checkpoint.folder '{self.folder}' cannot be used: {error.strerror}; choose another."
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise NetSplitError(
                f"checkpoint.folder '{self.folder}' is in use by another training: wait for it, or choose "
                "another folder."
            ) from error
        except OSError:  # a file system without locks
            pass
        return handle

    def _clean(self) -> None:
        for place in self.folder.iterdir():
            if _TEMPORARY.fullmatch(place.name):
                shutil.rmtree(place, ignore_errors=True)


def newest(folder: str | Path) -> Path | None:
    """The checkpoint at `folder`, or the newest complete one in it, or None."""
    folder = Path(folder)
    if is_complete(folder):
        return folder
    return next(reversed(_whole(folder)), None) if folder.is_dir() else None


def origin_checkpoint(folder: str) -> Path:
    """The checkpoint that `resume=<folder>` names, or the newest complete one in it."""
    try:
        checkpoint = newest(folder)
    except OSError as error:
        raise ConfigError(f"resume is '{folder}', which cannot be read: {error.strerror}.") from error
    if checkpoint is None:
        why, such = "where there is no complete checkpoint", ""
        if (file := Path(folder)).is_file():
            why, beside = "a file of parameters only", file.parent.parent / "checkpoints" / file.parent.name
            such = f", such as {beside}" if beside.is_dir() else ""
        raise ConfigError(
            f"resume is '{folder}', {why}: give never, auto, a checkpoint or a folder of checkpoints{such}."
        )
    return checkpoint


def stable_folder(config: Any, name: str) -> Path:
    """The default folder for checkpoints of an experiment: the same for the same model, data, optimiser,
    schedule and seed; `name` is for people."""
    chosen: dict[str, Any] = (
        {key: config[key] for key in _OF_THE_TRAINING if key in config} if config else {"name": name}
    )
    if isinstance(data := chosen.get("dataset"), Mapping):
        chosen["dataset"] = {key: value for key, value in data.items() if key not in _OF_READING}
    digest = hashlib.sha256(json.dumps(chosen, sort_keys=True, default=str).encode()).hexdigest()[:10]
    words = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-")
    return Path("outputs") / "checkpoints" / f"{words}-{digest}"


def opened_checkpoints(
    settings: Settings, stable: Path, folder: Path, method: str
) -> AbstractContextManager[Checkpoints | None]:
    """A method's own checkpoint folder in `stable` or `folder`; None if none is needed."""
    options, resume = settings.checkpoint, settings.resume
    if options.never and resume == "never":
        return nullcontext()
    place = stable if resume == "auto" or options.folder is not None else folder
    return Checkpoints(
        place / method,
        every_epochs=1 if options.never and resume == "auto" else options.every_epochs,
        every_iterations=options.every_iterations,
        keep=options.keep,
        resume=resume == "auto",
        origin=None if resume in ("never", "auto") else origin_checkpoint(resume),
    )


def _whole(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    places = [place for place in folder.iterdir() if _NAME.fullmatch(place.name) and is_complete(place)]
    return sorted(places, key=_number)


def _number(place: Path) -> int:
    return int(place.name.partition("-")[0])


def _remove(place: Path) -> None:
    """Rename first, so that a half-removed checkpoint does not look complete."""
    renamed = place.with_name(f".{place.name}.removed")
    try:
        place.rename(renamed)
    except OSError:
        return
    shutil.rmtree(renamed, ignore_errors=True)
