"""Models that the predictor of seconds is calibrated on and judged by: one of each family."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks._subjects import Layer, Subject, Words
from benchmarks._subjects import subjects as common

__all__ = ["MODELS", "models"]


def vgg(plan: tuple[int, ...] = (1, 1, 2, 2, 2), width: int = 64, classes: int = 10) -> nn.Sequential:
    """3x3 convolutions without normalisation, halved by maxima; two wide linear layers (VGG-11's plan)."""
    units: list[nn.Module] = []
    inward = 3
    for level, count in enumerate(plan):
        for _ in range(count):
            outward = width * min(2**level, 8)
            units += [nn.Conv2d(inward, outward, 3, padding=1), nn.ReLU(inplace=True)]
            inward = outward
        units.append(nn.MaxPool2d(2))
    head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * inward, 1024), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*units, *head, nn.Linear(1024, classes))


class Inverted(nn.Module):
    """1x1 up, depthwise, 1x1 down (Sandler et al., MobileNetV2, CVPR 2018)."""

    def __init__(self, inward: int, outward: int, stride: int, grow: int = 6, side: int = 3) -> None:
        super().__init__()
        middle = grow * inward
        self.around = stride == 1 and inward == outward
        self.body = nn.Sequential(
            nn.Conv2d(inward, middle, 1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU6(),
            nn.Conv2d(middle, middle, side, stride, side // 2, groups=middle, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU6(),
            nn.Conv2d(middle, outward, 1, bias=False),
            nn.BatchNorm2d(outward),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.around else self.body(x)


def mobilenet(levels: int = 6, classes: int = 10) -> nn.Sequential:
    """A stem, levels of inverted bottlenecks, a head."""
    units: list[nn.Module] = [
        nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6())
    ]
    inward = 32
    plan = ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2))
    for outward, count, stride in plan[:levels]:
        for place in range(count):
            units.append(Inverted(inward, outward, stride if place == 0 else 1))
            inward = outward
    return nn.Sequential(*units, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inward, classes))


class Dense(nn.Module):
    """Every unit reads all before it (Huang et al., DenseNet, CVPR 2017)."""

    def __init__(self, inward: int, growth: int, count: int) -> None:
        super().__init__()
        self.units = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(inward + i * growth),
                nn.ReLU(),
                nn.Conv2d(inward + i * growth, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth),
                nn.ReLU(),
                nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            for i in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        for unit in self.units:
            x = torch.cat([x, unit(x)], 1)
        return x


def densenet(counts: tuple[int, ...] = (4, 8, 6), growth: int = 32, classes: int = 10) -> nn.Sequential:
    """Dense blocks with halvings between."""
    inward = 2 * growth
    units: list[nn.Module] = [nn.Conv2d(3, inward, 3, padding=1, bias=False), nn.AvgPool2d(2)]
    for level, count in enumerate(counts):
        units.append(Dense(inward, growth, count))
        inward += count * growth
        if level < len(counts) - 1:
            units += [nn.BatchNorm2d(inward), nn.ReLU(), nn.Conv2d(inward, inward // 2, 1), nn.AvgPool2d(2)]
            inward //= 2
    return nn.Sequential(*units, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inward, classes))


class Rows(nn.Module):
    """Layer normalisation over the channels of a picture."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Wide(nn.Module):
    """Depthwise 7x7, then two linear layers on every pixel (Liu et al., ConvNeXt, CVPR 2022)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.spread = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.spread(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext(counts: tuple[int, ...] = (2, 2, 4, 2), width: int = 64, classes: int = 10) -> nn.Sequential:
    """A stem of patches, four levels, a head."""
    units: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), Rows(width)]
    for level, count in enumerate(counts):
        if level:
            units += [Rows(width), nn.Conv2d(width, 2 * width, 2, 2)]
            width *= 2
        units += [Wide(width) for _ in range(count)]
    return nn.Sequential(*units, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


class Scores(nn.Module):
    """Scores of every word at every place: (n, words, length)."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.norm(x)).transpose(1, 2)


def gpt(layers: int, width: int, heads: int, length: int, words: int) -> nn.Sequential:
    """A transformer with scores for a word at every place."""
    body = (Layer(width, heads) for _ in range(layers))
    return nn.Sequential(Words(words, length, width), *body, Scores(width, words))


class Writer(Subject):
    """A model whose targets are the words one place on."""

    def batch(self, microbatches: int) -> tuple[Tensor, Tensor]:
        inputs, _ = super().batch(microbatches)
        return inputs, inputs.roll(-1, 1)


def autoencoder(width: int = 32, levels: int = 3, classes: int = 10) -> nn.Sequential:
    """Strided convolutions down and transposed ones up, with group normalisation; scores for every pixel."""
    units: list[nn.Module] = []
    inward = 3
    for level in range(levels):
        outward = width * 2**level
        units += [nn.Conv2d(inward, outward, 5, 2, 2), nn.GroupNorm(8, outward), nn.SiLU()]
        inward = outward
    for level in reversed(range(levels)):
        outward = max(width * 2**level // 2, 16)
        units += [nn.ConvTranspose2d(inward, outward, 4, 2, 1), nn.GroupNorm(8, outward), nn.SiLU()]
        inward = outward
    return nn.Sequential(*units, nn.Conv2d(inward, classes, 3, padding=1))


def _own(quick: bool) -> tuple[Subject, ...]:
    side = 64 if quick else 96
    return (
        Subject("vgg", vgg, (3, side, side), 2),
        Subject("mobilenet", mobilenet, (3, side, side), 4),
        Subject("densenet", densenet, (3, side // 2, side // 2), 4),
        Subject("convnext", convnext, (3, side, side), 4),
        Writer("gpt", partial(gpt, 4, 192, 6, 128, 512), (128,), 2, words=512),
        Subject("autoencoder", autoencoder, (3, side, side), 4, maps=True),
    )


def models(quick: bool = False, names: list[str] | None = None) -> list[Subject]:
    """The models by name, all by default; smaller ones if `quick`."""
    return [each for each in (*common(quick), *_own(quick)) if names is None or each.name in names]


MODELS = tuple(each.name for each in models())
