"""CIFAR-10, from a folder that holds ``cifar-10-batches-py``, as its authors publish it for Python."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from netsplit.data.dataset import Data
from netsplit.data.draw import Drawn, limited
from netsplit.data.keys import ReadBy, check_common, existing_file, existing_folder, root_folder
from netsplit.data.pictures import Normalise
from netsplit.errors import ConfigError

__all__ = ["cifar10"]

LAYOUT = "cifar-10-batches-py/ with data_batch_1 to data_batch_5, test_batch and batches.meta"
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
SIDE, CHANNELS, PADDING = 32, 3, 4

# All that a pickled array needs; a pickle that asks for anything else is not run.
_ALLOWED = {
    (module, name)
    for package in ("numpy.core", "numpy._core")
    for module, name in ((f"{package}.multiarray", "_reconstruct"), (f"{package}.numeric", "_frombuffer"))
} | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}


def cifar10(
    root: str,
    augment: bool = True,
    mean: Sequence[float] = (0.4914, 0.4822, 0.4465),
    std: Sequence[float] = (0.2470, 0.2435, 0.2616),
    limit: int | None = None,
    workers: int = 0,
    prefetch: int = 2,
    seed: int = 0,
    read_by: ReadBy = "auto",
) -> Data:
    """50,000 and 10,000 float32 images (3, 32, 32) of 10 classes, kept in memory as bytes.

    Training images are padded by 4 pixels of black, cut at random to their size again, and flipped half
    of the time.

    Args:
        augment: false leaves them as they are.
        limit: at most so many images of each half, drawn by `seed`.
        seed: with the epoch and the index of an image, it fixes the augmentation.

    Raises:
        ConfigError: a file is missing, broken or not CIFAR-10's, or a number cannot be used.
    """
    normalise = Normalise.of(mean, std)
    check_common(limit, workers, prefetch, seed)
    folder = existing_folder(root_folder(root, LAYOUT) / "cifar-10-batches-py", LAYOUT)
    classes = _classes(folder / "batches.meta")
    plain, augmented = _Augmentation(False, normalise), _Augmentation(augment, normalise)
    train = _images([folder / name for name in TRAIN], len(classes), limit, seed)
    test = _images([folder / "test_batch"], len(classes), limit, seed)
    halves = Drawn(train, augmented, seed), Drawn(test, plain, seed)
    return Data(
        "cifar10", *halves, len(classes), classes, workers=workers, prefetch=prefetch, read_by=read_by
    )


@dataclass(frozen=True, eq=False)
class _Cifar10Images:
    pixels: np.ndarray  # (n, 3, 32, 32) uint8
    targets: np.ndarray  # (n,) int64

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int, /) -> tuple[np.ndarray, int]:
        return self.pixels[index], int(self.targets[index])


@dataclass(frozen=True)
class _Augmentation:
    augment: bool
    normalise: Normalise

    def __call__(self, sample: tuple[np.ndarray, int], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        pixels, target = sample
        if self.augment:
            padded = np.pad(pixels, ((0, 0), (PADDING, PADDING), (PADDING, PADDING)))
            top, left = rng.integers(2 * PADDING + 1, size=2)
            pixels = padded[:, top : top + SIDE, left : left + SIDE]
            if rng.random() < 0.5:
                pixels = pixels[:, :, ::-1]
        image = torch.from_numpy(pixels.astype(np.float32) / 255.0)
        return self.normalise(image), torch.tensor(target)


def _images(files: list[Path], classes: int, limit: int | None, seed: int) -> _Cifar10Images:
    parts = [_batch(file, classes) for file in files]
    pixels, targets = (np.concatenate(column) for column in zip(*parts, strict=True))
    chosen = limited(len(targets), limit, seed)
    if len(chosen) < len(targets):
        pixels, targets = pixels[chosen], targets[chosen]
    return _Cifar10Images(pixels, targets)


def _batch(file: Path, classes: int) -> tuple[np.ndarray, np.ndarray]:
    content = _unpickled(file)
    try:
        pixels = np.asarray(content[b"data"], dtype=np.uint8).reshape(-1, CHANNELS, SIDE, SIDE)
        targets = np.asarray(content[b"labels"], dtype=np.int64)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _broken(file, f"no rows of {CHANNELS * SIDE * SIDE} bytes in 'data', or no 'labels'") from error
    if len(pixels) != len(targets) or targets.ndim != 1:
        raise _broken(file, f"{len(pixels)} images, but {targets.size} labels")
    if len(targets) and not 0 <= targets.min() <= targets.max() < classes:
        raise _broken(file, f"labels from {targets.min()} to {targets.max()}, but {classes} classes")
    return pixels, targets


def _classes(file: Path) -> tuple[str, ...]:
    names = _unpickled(file).get(b"label_names")
    if not isinstance(names, list) or not names or not all(isinstance(name, bytes) for name in names):
        raise _broken(file, "no list 'label_names'")
    return tuple(name.decode("utf-8", "replace") for name in names)


def _unpickled(file: Path) -> dict[bytes, Any]:
    content = existing_file(file, LAYOUT).read_bytes()
    try:
        values = _Careful(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a broken pickle raises whatever its bytes happen to ask for
        raise _broken(file, str(error) or type(error).__name__) from error
    if not isinstance(values, dict):
        raise _broken(file, "no mapping")
    return values


def _broken(file: Path, reason: str) -> ConfigError:
    reason = reason.splitlines()[0].rstrip(".")
    return ConfigError(f"{file} is no batch of CIFAR-10's Python version ({reason}): unpack it again.")


class _Careful(pickle.Unpickler):
    """Makes arrays and plain values only: a pickle may otherwise run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)
