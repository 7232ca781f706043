"""Synthetic data made on demand: images, masks, tokens, and records of several inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from netsplit.data.dataset import Data, Generated, MetricName, generator_of
from netsplit.data.keys import at_least
from netsplit.errors import ConfigError

__all__ = ["records", "synthetic"]

Kind = Literal["image", "mask", "tokens"]

CELLS = 4  # a mask has CELLS x CELLS patches of one class
FOLLOWS = 0.9  # fraction of tokens that follow from the one before
NOISE = 0.5

_RULE = 2  # keeps shared draws apart from those of the two halves, 0 and 1


def synthetic(
    kind: Kind = "image",
    shape: Sequence[int] = (3, 224, 224),
    num_classes: int = 10,
    learnable: bool = True,
    train: int = 1024,
    test: int = 256,
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """Samples drawn on demand from (seed, half, index), so any number costs no memory.

    `image`: float32 of `shape` (channels, height, width), and a class. `mask`: such an image, and a class
    for every pixel (height, width). `tokens`: int64 of `shape` (length,) below `num_classes`, and the next
    of each.

    Args:
        learnable: each class has its wave in the image, or its colour in the mask's patches, under noise; a
            token mostly determines the next. False: inputs say nothing about targets.
        train: samples in the training half.
        test: samples in the test half.
        limit: the most samples of each half.

    Raises:
        ConfigError: a shape that does not fit the kind, or a number that cannot be used.
    """
    if kind not in _KINDS:
        raise ConfigError(f"dataset.kind is '{kind}': give one of {', '.join(_KINDS)}.")
    maker, names, metric = _KINDS[kind]
    if len(shape) != len(names.split(", ")) or min(shape) < 1:
        raise ConfigError(f"dataset.shape is {list(shape)}: give [{names}] for kind {kind}, all above 0.")
    at_least(1, num_classes=num_classes, train=train, test=test, limit=limit)
    make = maker(tuple(shape), num_classes, learnable, seed)
    halves = [Generated(make, min(n, limit or n), seed, half) for half, n in enumerate((train, test))]
    classes = tuple(map(str, range(num_classes)))
    return Data(f"synthetic_{kind}", halves[0], halves[1], num_classes, classes, metric=metric)


@dataclass(frozen=True)
class _Maker:
    shape: tuple[int, ...]
    num_classes: int
    learnable: bool
    seed: int

    def noise(self, rng: np.random.Generator) -> Tensor:
        """(*shape,) with deviation 1, or less if a signal is added."""
        values = rng.standard_normal(self.shape, dtype=np.float32)
        return torch.from_numpy(values) * (NOISE if self.learnable else 1.0)


class _Images(_Maker):
    def __call__(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        target = int(rng.integers(self.num_classes))
        image = self.noise(rng)
        return (image + self._wave(target) if self.learnable else image), torch.tensor(target)

    def _wave(self, target: int) -> Tensor:
        """A plane wave (channels, height, width) whose direction, length and phases are the class's."""
        rng = generator_of(self.seed, _RULE, target)
        channels, height, width = self.shape
        down, right = rng.uniform(0.5, 4, size=2) * 2 * np.pi * rng.choice([-1, 1], size=2)
        phases = rng.uniform(0, 2 * np.pi, size=(channels, 1, 1))
        y = (down * np.linspace(0, 1, height)[:, None] + phases).astype(np.float32)
        x = (right * np.linspace(0, 1, width)[None, :]).astype(np.float32)
        return torch.from_numpy(np.cos(y) * np.cos(x) - np.sin(y) * np.sin(x))  # cos(y + x), for less


class _Masks(_Maker):
    def __call__(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        _, height, width = self.shape
        cells = rng.integers(self.num_classes, size=(CELLS, CELLS))
        rows, columns = (np.arange(side) * CELLS // side for side in (height, width))
        target = cells[rows[:, None], columns[None, :]]
        image = self.noise(rng)
        if self.learnable:
            image += torch.from_numpy(self._colours(cells)[:, rows[:, None], columns[None, :]])
        return image, torch.from_numpy(target)

    def _colours(self, cells: np.ndarray) -> np.ndarray:
        """(channels, *cells.shape): the colour of each cell's class."""
        colours = np.empty((self.shape[0], *cells.shape), dtype=np.float32)
        for target in np.unique(cells):
            colour = 2 * generator_of(self.seed, _RULE, int(target)).standard_normal((self.shape[0], 1))
            colours[:, cells == target] = colour
        return colours


class _Tokens(_Maker):
    def __call__(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        length = self.shape[0] + 1
        tokens = rng.integers(self.num_classes, size=length)
        if self.learnable:
            step = 1 + int(generator_of(self.seed, _RULE).integers(max(1, self.num_classes - 1)))
            # A following token is the one before plus a step; the others are random.
            begins = rng.random(length) >= FOLLOWS
            begins[0] = True
            since = np.arange(length) - np.maximum.accumulate(np.where(begins, np.arange(length), 0))
            tokens = (tokens[np.arange(length) - since] + since * step) % self.num_classes
        tensors = torch.from_numpy(tokens)
        return tensors[:-1], tensors[1:]


_KINDS: dict[str, tuple[type[_Images | _Masks | _Tokens], str, MetricName]] = {
    "image": (_Images, "channels, height, width", "accuracy"),
    "mask": (_Masks, "channels, height, width", "mean_iou"),
    "tokens": (_Tokens, "length", "perplexity"),
}


def records(
    numbers: Sequence[int] = (4,),
    categories: Sequence[int] = (1000, 1000, 1000, 1000),
    bag: int = 1,
    num_classes: int = 2,
    train: int = 1024,
    test: int = 256,
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """Samples of one or several inputs, drawn from (seed, half, index).

    Inputs: float32 of each size in `numbers`, then int64 (categories, bag), each below its entry of
    `categories`. Target: a class, which shifts all numbers and is the remainder of most categories; or,
    without classes, float32 (1,): the mean of the first numbers.

    Args:
        num_classes: 0: predict a number.
        train, test: samples in each half; they cost no memory.
        limit: the most samples of each half.

    Raises:
        ConfigError: no inputs, or a number that cannot be used.
    """
    at_least(1, train=train, test=test, bag=bag, limit=limit)
    at_least(1, numbers=min(numbers, default=1), categories=min(categories, default=1))
    at_least(0, num_classes=num_classes)
    if not numbers and (not categories or not num_classes):
        raise ConfigError("dataset.numbers is []: give the size of at least one input, as in [4].")
    make = _Records(tuple(numbers), tuple(categories), bag, num_classes)
    halves = [Generated(make, min(n, limit or n), seed, half) for half, n in enumerate((train, test))]
    return Data("records", halves[0], halves[1], num_classes, tuple(map(str, range(num_classes))))


@dataclass(frozen=True)
class _Records:
    numbers: tuple[int, ...]
    categories: tuple[int, ...]
    bag: int
    num_classes: int

    def __call__(self, rng: np.random.Generator) -> tuple[Tensor | tuple[Tensor, ...], Tensor]:
        target = int(rng.integers(max(self.num_classes, 1)))
        drawn = (rng.standard_normal(size, dtype="float32") for size in self.numbers)
        inputs = [torch.from_numpy(each + target) for each in drawn]
        wanted = torch.tensor(target) if self.num_classes else inputs[0].mean(0, keepdim=True)
        if self.categories:
            step, sizes = max(self.num_classes, 1), torch.tensor(self.categories)[:, None]
            rows = torch.from_numpy(rng.integers(2**40, size=(len(self.categories), self.bag))) % sizes
            inputs.append((rows - rows % step + target) % sizes)
        return (inputs[0] if len(inputs) == 1 else tuple(inputs)), wanted
