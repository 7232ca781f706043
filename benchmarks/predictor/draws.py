"""Models drawn by seed, for calibration alone: operators of every class at sizes that no one model has.

A network in use has few shapes, most of them powers of two; rates fitted to a handful of networks know
little of what lies between. A drawn chain of layers takes a second to profile.
"""

from __future__ import annotations

import random
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks._subjects import Layer, Subject

__all__ = ["draws"]

MOST_FLOPS = 2e8  # of a layer's forward for the whole batch: a few milliseconds


class Around(nn.Module):
    """Adds a layer's output to its input, or puts it beside."""

    def __init__(self, inner: nn.Module, beside: bool) -> None:
        super().__init__()
        self.inner = inner
        self.beside = beside

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return torch.cat([x, y], 1) if self.beside else x + y


def pictures(seed: int, samples: int, side: int, layers: int = 24, classes: int = 10) -> nn.Sequential:
    """A chain of convolutions, normalisations, activations, poolings and ways around them."""
    draw = random.Random(seed)
    units: list[nn.Module] = []
    width = draw.choice([8, 16, 24, 32])
    units.append(nn.Conv2d(3, width, draw.choice([3, 5, 7]), padding="same"))
    for _ in range(layers):
        conv, width, side = _convolution(draw, width, side, samples)
        units += [conv, *_after(draw, width)]
        if side >= 8 and draw.random() < 0.15:
            units.append(draw.choice([nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2)]))
            side //= 2
        elif side <= 16 and draw.random() < 0.15:
            narrow = max(8, width // 16 * 8)
            units.append(nn.ConvTranspose2d(width, narrow, 2, 2))
            width, side = narrow, side * 2
        elif draw.random() < 0.1:
            units.append(draw.choice([nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)]))
        if draw.random() < 0.3:
            beside = draw.random() < 0.4 and width <= 256
            inner, _, _ = _convolution(draw, width, side, samples, width, keep=True)
            units.append(Around(nn.Sequential(inner, *_after(draw, width)), beside))
            width *= 1 + beside
    return nn.Sequential(*units, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def _convolution(
    draw: random.Random, width: int, side: int, samples: int, outward: int = 0, keep: bool = False
) -> tuple[nn.Module, int, int]:
    """A convolution with its output's channels and side."""
    stride = 2 if not keep and side >= 8 and draw.random() < 0.2 else 1
    if draw.random() < 0.2:
        tap = draw.choice([3, 3, 5, 7])
        return nn.Conv2d(width, width, tap, stride, tap // 2, groups=width), width, side // stride
    tap = draw.choice([1, 1, 1, 3, 3, 3, 5, (1, 7), (7, 1)])
    high, wide = (tap, tap) if isinstance(tap, int) else tap
    places = samples * (side // stride) ** 2
    most = MOST_FLOPS / (2 * places * width * high * wide)
    wanted = outward or 8 * round(2 ** draw.uniform(0, 8 if side <= 8 else 6.5))
    outward = outward or max(8, min(wanted, int(most) // 8 * 8))
    made = nn.Conv2d(width, outward, (high, wide), stride, (high // 2, wide // 2), bias=draw.random() < 0.5)
    return made, outward, side // stride


def _after(draw: random.Random, width: int) -> list[nn.Module]:
    norms = [nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.GroupNorm(8, width), None]
    activations = [nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.GELU(), nn.SiLU(), nn.Dropout(0.2), None]
    return [each for each in (draw.choice(norms), draw.choice(activations)) if each is not None]


class Words(nn.Module):
    """An embedding of words."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x)


class Mean(nn.Module):
    """Class scores of the mean over the places."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.scores = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x.mean(1))


def rows(seed: int, classes: int = 10) -> nn.Sequential:
    """Linear layers between rows of drawn widths, normalisations, activations and attention."""
    draw = random.Random(seed)
    width = 16 * draw.randint(2, 16)
    units: list[nn.Module] = [Words(draw.choice([50, 500, 2000]), width)]
    for _ in range(10):
        if draw.random() < 0.25:
            units.append(Layer(width, width // 16 if draw.random() < 0.5 else max(1, width // 64)))
            if width % units[-1].heads:  # type: ignore[operator]
                units[-1] = Layer(width, width // 16)
        outward = 16 * round(2 ** draw.uniform(1, 6.3))
        units.append(nn.Linear(width, outward, bias=draw.random() < 0.7))
        width = outward
        if draw.random() < 0.5:
            units.append(nn.LayerNorm(width))
        if draw.random() < 0.7:
            units.append(draw.choice([nn.ReLU(), nn.GELU(), nn.Tanh(), nn.Sigmoid(), nn.Dropout(0.1)]))
        if draw.random() < 0.15:
            units.append(nn.Softmax(-1))
    return nn.Sequential(*units, Mean(width, classes))


def draws(count: int = 8) -> list[Subject]:
    """Pictures and rows in turn, each with a batch and a size of its own."""
    drawn = []
    for seed in range(count):
        draw = random.Random(1000 + seed)
        if seed % 4 < 3:
            samples, side = draw.choice([1, 2, 4, 8]), draw.choice([16, 24, 32, 48, 64])
            build = partial(pictures, seed, samples, side)
            drawn.append(Subject(f"drawn{seed}", build, (3, side, side), samples))
        else:
            samples, length = draw.choice([1, 2, 4, 8]), draw.choice([16, 32, 50, 64, 100])
            drawn.append(Subject(f"drawn{seed}", partial(rows, seed), (length,), samples, words=50))
    return drawn
