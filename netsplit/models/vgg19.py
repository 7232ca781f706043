"""VGG-19: sixteen 3x3 convolutions and three linear layers, one after the other.

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015
(configuration E). The layers are torchvision's, and so are the names of all parameters.
"""

from __future__ import annotations

from torch import Tensor, nn

from netsplit.beside_torchvision import import_torchvision
from netsplit.models._sizes import check_fraction, check_least

__all__ = ["VGG19", "vgg19"]

GROUPS = ((1, 2), (2, 2), (4, 4), (8, 4), (8, 4))  # (multiple of the width, convolutions), then a pool


class VGG19(nn.Module):
    """Images (batch, 3, height, width) -> logits (batch, num_classes)."""

    def __init__(
        self, num_classes: int, width: int, hidden: int, pooled: int, batch_norm: bool, dropout: float
    ) -> None:
        super().__init__()
        plan: list[str | int] = []
        for multiple, convolutions in GROUPS:
            plan += [*[multiple * width] * convolutions, "M"]
        self.features = import_torchvision().models.vgg.make_layers(plan, batch_norm=batch_norm)
        self.avgpool = nn.AdaptiveAvgPool2d(pooled)
        self.classifier = nn.Sequential(
            nn.Linear(8 * width * pooled**2, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(images)).flatten(1))


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
        num_classes: scores a sample.
        width: channels of the first group of convolutions; the last has eight times as many.
        hidden: features between the linear layers.
        pooled: sides to which the last maps are averaged; 1 suits images of 32x32.
        batch_norm: a BatchNorm after every convolution.
        dropout: probability between the linear layers.
    """
    check_least(1, num_classes=num_classes, width=width, hidden=hidden, pooled=pooled)
    check_fraction(dropout=dropout)
    return VGG19(num_classes, width, hidden, pooled, batch_norm, dropout)
