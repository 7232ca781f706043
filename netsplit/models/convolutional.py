"""AlexNet, VGG-19 and LeNet, which are chains; GoogLeNet and Inception-v3, which branch.

All but LeNet are torchvision's, with the names of its parameters.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from netsplit.beside_torchvision import import_torchvision
from netsplit.errors import ConfigError
from netsplit.models.sizes import check_fraction, check_least

__all__ = ["alexnet", "googlenet", "inception_v3", "lenet", "vgg19"]

VGG_GROUPS = ((1, 2), (2, 2), (4, 4), (8, 4), (8, 4))  # (multiple of the width, convolutions), then a pool


class ConvNet(nn.Module):
    """Images (batch, channels, height, width) -> logits (batch, num_classes); maps are averaged to `pooled`
    pixels a side, unless that is None."""

    def __init__(self, features: nn.Module, pooled: int | None, classifier: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.avgpool = nn.Identity() if pooled is None else nn.AdaptiveAvgPool2d(pooled)
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(images)).flatten(1))


class AlexNet(ConvNet):
    """Krizhevsky, Sutskever and Hinton, NIPS 2012, in the sizes of Krizhevsky, "One weird trick for
    parallelizing convolutional neural networks", 2014.
    """


def alexnet(
    num_classes: int = 1000,
    width: int = 64,
    hidden: int = 4096,
    pooled: int = 6,
    small_images: bool = False,
    dropout: float = 0.5,
) -> nn.Module:
    """AlexNet; sides of the images must be at least 63, or 15 with `small_images`.

    Args:
        width: channels of the first convolution; the third has six times as many.
        pooled: sides to which the last maps are averaged.
        small_images: a first convolution of 3x3 that keeps the sides: for images of 32x32.
    """
    check_least(1, num_classes=num_classes, width=width, hidden=hidden, pooled=pooled)
    check_fraction(dropout=dropout)
    kernel, stride, padding = (3, 1, 1) if small_images else (11, 4, 2)
    features: list[nn.Module] = [nn.Conv2d(3, width, kernel, stride, padding), nn.ReLU(), nn.MaxPool2d(3, 2)]
    for before, after, side, pools in ((1, 3, 5, True), (3, 6, 3, False), (6, 4, 3, False), (4, 4, 3, True)):
        features += [nn.Conv2d(before * width, after * width, side, padding=side // 2), nn.ReLU()]
        features += [nn.MaxPool2d(3, 2)] * pools
    classifier: list[nn.Module] = []
    for size in (4 * width * pooled**2, hidden):
        classifier += [nn.Dropout(dropout), nn.Linear(size, hidden), nn.ReLU()]
    classifier.append(nn.Linear(hidden, num_classes))
    return AlexNet(nn.Sequential(*features), pooled, nn.Sequential(*classifier))


class VGG19(ConvNet):
    """Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015
    (configuration E).
    """


def vgg19(
    num_classes: int = 1000,
    width: int = 64,
    hidden: int = 4096,
    pooled: int = 7,
    batch_norm: bool = False,
    dropout: float = 0.5,
) -> nn.Module:
    """VGG-19; sides of the images must be at least 32.

    Args:
        width: channels of the first group of convolutions; the last has eight times as many.
        pooled: sides to which the last maps are averaged; 1 suits images of 32x32.
    """
    check_least(1, num_classes=num_classes, width=width, hidden=hidden, pooled=pooled)
    check_fraction(dropout=dropout)
    plan: list[str | int] = []
    for multiple, convolutions in VGG_GROUPS:
        plan += [*[multiple * width] * convolutions, "M"]
    features = import_torchvision().models.vgg.make_layers(plan, batch_norm=batch_norm)
    classifier: list[nn.Module] = []
    for size in (8 * width * pooled**2, hidden):
        classifier += [nn.Linear(size, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout)]
    classifier.append(nn.Linear(hidden, num_classes))
    for module in (*features, *classifier):
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return VGG19(features, pooled, nn.Sequential(*classifier))


class LeNet(ConvNet):
    """LeCun et al., "Gradient-Based Learning Applied to Document Recognition", Proceedings of the IEEE 1998,
    in the sizes and with the pools of TensorFlow-Slim's model of that name.
    """


def lenet(
    num_classes: int = 10, in_channels: int = 3, side: int = 28, hidden: int = 1024, dropout: float = 0.5
) -> nn.Module:
    """LeNet: two convolutions, each followed by a pool, and two linear layers.

    Args:
        side: height and width of the images, a multiple of 4.
    """
    check_least(1, num_classes=num_classes, in_channels=in_channels, hidden=hidden)
    check_fraction(dropout=dropout)
    if side < 4 or side % 4:
        raise ConfigError(f"model.side is {side}: give a multiple of 4, as the images are halved twice.")
    features: list[nn.Module] = []
    for before, after in ((in_channels, 32), (32, 64)):
        features += [nn.Conv2d(before, after, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    classifier = nn.Sequential(
        nn.Linear(64 * (side // 4) ** 2, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, num_classes),
    )
    return LeNet(nn.Sequential(*features), None, classifier)


def googlenet(num_classes: int = 1000, dropout: float = 0.2) -> nn.Module:
    """GoogLeNet: images (batch, 3, height, width) -> logits (batch, num_classes); made for sides of 224.

    Szegedy et al., "Going Deeper with Convolutions", CVPR 2015: nine modules of four branches, here with
    BatchNorm, 3x3 convolutions where the paper has 5x5, and no auxiliary heads.
    """
    return _without_auxiliary_heads("GoogLeNet", num_classes, dropout)


def inception_v3(num_classes: int = 1000, dropout: float = 0.5) -> nn.Module:
    """Inception-v3: images (batch, 3, height, width) -> logits (batch, num_classes); made for sides of 299,
    and at least 75.

    Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016: eleven modules of
    up to six branches, here without auxiliary heads.
    """
    return _without_auxiliary_heads("Inception3", num_classes, dropout)


def _without_auxiliary_heads(name: str, num_classes: int, dropout: float) -> nn.Module:
    check_least(1, num_classes=num_classes)
    check_fraction(dropout=dropout)
    build = getattr(import_torchvision().models, name)
    return cast(
        nn.Module, build(num_classes=num_classes, aux_logits=False, init_weights=True, dropout=dropout)
    )
