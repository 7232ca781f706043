"""AlexNet: five convolutions and three linear layers, which have most of its parameters.

Krizhevsky, Sutskever and Hinton, "ImageNet Classification with Deep Convolutional Neural Networks", NIPS
2012, in the sizes of Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014,
which are torchvision's, with the names of its parameters.
"""

from __future__ import annotations

from torch import Tensor, nn

from netsplit.models._sizes import check_fraction, check_least

__all__ = ["AlexNet", "alexnet"]


class AlexNet(nn.Module):
    """Images (batch, 3, height, width) -> logits (batch, num_classes).

    With `small_images` the first convolution is one of 3x3 that keeps the sides.
    """

    def __init__(
        self, num_classes: int, width: int, hidden: int, pooled: int, small_images: bool, dropout: float
    ) -> None:
        super().__init__()
        kernel, stride, padding = (3, 1, 1) if small_images else (11, 4, 2)
        self.features = nn.Sequential(
            nn.Conv2d(3, width, kernel, stride, padding),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(width, 3 * width, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(3 * width, 6 * width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(6 * width, 4 * width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(4 * width, 4 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(pooled)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(4 * width * pooled**2, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(images)).flatten(1))


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
        num_classes: scores a sample.
        width: channels of the first convolution; the third has six times as many.
        hidden: features between the linear layers.
        pooled: sides to which the last maps are averaged.
        small_images: a first convolution that keeps the sides: for images of 32x32.
        dropout: probability before the first two linear layers.
    """
    check_least(1, num_classes=num_classes, width=width, hidden=hidden, pooled=pooled)
    check_fraction(dropout=dropout)
    return AlexNet(num_classes, width, hidden, pooled, small_images, dropout)
