"""Models that the runtime is measured on: chains of units, and graphs that are no chain.

A *unit* is a child of the model; where units are cut decides which device runs what. In a chain each unit
reads the one before it alone, so that `torch.distributed.pipelining` can run it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.models import amoebanet_d

__all__ = ["SUBJECTS", "Subject", "subjects"]


@dataclass(frozen=True)
class Subject:
    """A model with random data for it.

    `shape` is of one sample; `words` says that samples are word indices below it; `maps` that there is a
    target for every pixel.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    microbatch: int  # samples
    chain: bool = False
    words: int = 0
    maps: bool = False
    classes: int = 10

    def fresh(self) -> nn.Module:
        """The model with the same parameters at every call, in training mode."""
        torch.manual_seed(7)
        return self.build().train()

    def batch(self, microbatches: int) -> tuple[Tensor, Tensor]:
        """Inputs (n, *shape) and targets (n,) or (n, height, width), the same at every call."""
        count = self.microbatch * microbatches
        draw = torch.Generator().manual_seed(11)
        if self.words:
            inputs = torch.randint(0, self.words, (count, *self.shape), generator=draw)
        else:
            inputs = torch.randn((count, *self.shape), generator=draw)
        size = (count, *self.shape[1:]) if self.maps else (count,)
        return inputs, torch.randint(0, self.classes, size, generator=draw)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a way around (He et al., Deep Residual Learning, CVPR 2016, figure 5)."""

    def __init__(self, inward: int, width: int, stride: int) -> None:
        super().__init__()
        outward = 4 * width
        self.narrow = nn.Sequential(nn.Conv2d(inward, width, 1, bias=False), nn.BatchNorm2d(width))
        self.middle = nn.Sequential(
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width)
        )
        self.widen = nn.Sequential(nn.Conv2d(width, outward, 1, bias=False), nn.BatchNorm2d(outward))
        changes = stride != 1 or inward != outward
        around = nn.Sequential(nn.Conv2d(inward, outward, 1, stride, bias=False), nn.BatchNorm2d(outward))
        self.around = around if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.middle(F.relu(self.narrow(x))))
        return F.relu(self.widen(y) + self.around(x))


def resnet(blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 10) -> nn.Sequential:
    """A bottleneck ResNet as a chain: stem, every block, head. The defaults are ResNet-50's."""
    units: list[nn.Module] = [
        nn.Sequential(
            nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
        )
    ]
    inward = width
    for group, count in enumerate(blocks):
        for place in range(count):
            stride = 2 if group > 0 and place == 0 else 1
            units.append(Bottleneck(inward, width * 2**group, stride))
            inward = 4 * width * 2**group
    units.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inward, classes)))
    return nn.Sequential(*units)


class Layer(nn.Module):
    """A transformer encoder's layer, norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.three = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        three = self.three(self.before(x)).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = (part.transpose(1, 2) for part in three.unbind(2))
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.joined(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Words(nn.Module):
    """Embeddings of words and of their places."""

    def __init__(self, words: int, length: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(length, width) / 50)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x) + self.places


class Mean(nn.Module):
    """Class scores of the mean over the places."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.norm(x).mean(1))


def transformer(
    layers: int = 12, width: int = 256, heads: int = 4, length: int = 64, words: int = 1000, classes: int = 10
) -> nn.Sequential:
    """A transformer encoder that classifies, as a chain: words, every layer, head."""
    return nn.Sequential(
        Words(words, length, width),
        *(Layer(width, heads) for _ in range(layers)),
        Mean(width, classes),
    )


def _two(inward: int, outward: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inward, outward, 3, padding=1, bias=False),
        nn.BatchNorm2d(outward),
        nn.ReLU(),
        nn.Conv2d(outward, outward, 3, padding=1, bias=False),
        nn.BatchNorm2d(outward),
        nn.ReLU(),
    )


class Up(nn.Module):
    """Twice the side, joined with what came down at that side."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        self.grow = nn.ConvTranspose2d(inward, outward, 2, 2)
        self.twice = _two(2 * outward, outward)

    def forward(self, x: Tensor, beside: Tensor) -> Tensor:
        return self.twice(torch.cat([beside, self.grow(x)], 1))


class UNet(nn.Module):
    """Ronneberger et al., U-Net, MICCAI 2015: every way down feeds the way up of its side."""

    def __init__(self, depth: int = 4, width: int = 24, classes: int = 10) -> None:
        super().__init__()
        self.depth = depth
        self.down0 = _two(3, width)
        for level in range(1, depth + 1):
            below = nn.Sequential(nn.MaxPool2d(2), _two(width * 2 ** (level - 1), width * 2**level))
            self.add_module(f"down{level}", below)
        for level in reversed(range(depth)):
            self.add_module(f"up{level}", Up(width * 2 ** (level + 1), width * 2**level))
        self.scores = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        beside = []
        for level in range(self.depth + 1):
            x = self.get_submodule(f"down{level}")(x)
            beside.append(x)
        for level in reversed(range(self.depth)):
            x = self.get_submodule(f"up{level}")(x, beside[level])
        return self.scores(x)


def _all(quick: bool) -> tuple[Subject, ...]:
    """Models whose iteration of 8 micro-batches takes one to two seconds on a thread; a third if `quick`."""
    side = 64 if quick else 112
    return (
        Subject("resnet50", resnet, (3, side, side), 2, chain=True),
        Subject(
            "transformer",
            partial(transformer, 6 if quick else 12, 256),
            (64,),
            4,
            chain=True,
            words=1000,
        ),
        Subject("unet", partial(UNet, 4, 16 if quick else 24), (3, 64, 64), 2 if quick else 3, maps=True),
        Subject(
            "amoebanet_d",
            partial(amoebanet_d, num_layers=3, num_filters=64 if quick else 96, small_images=True),
            (3, 32, 32),
            8,
        ),
    )


def subjects(quick: bool = False, names: list[str] | None = None) -> list[Subject]:
    """The models by name, all by default."""
    return [each for each in _all(quick) if names is None or each.name in names]


SUBJECTS = tuple(each.name for each in _all(False))
