"""LeNet: two convolutions with a pool behind each, and two linear layers.

LeCun et al., "Gradient-Based Learning Applied to Document Recognition", Proceedings of the IEEE 1998, in
the sizes and with the pools of TensorFlow-Slim's model of that name.
"""

from __future__ import annotations

from torch import Tensor, nn

from netsplit.errors import ConfigError
from netsplit.models._sizes import check_fraction, check_least

__all__ = ["LeNet", "lenet"]


class LeNet(nn.Module):
    """Images (batch, in_channels, side, side) -> logits (batch, num_classes)."""

    def __init__(self, *, num_classes: int, in_channels: int, side: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.side = side
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(64 * (side // 4) ** 2, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        if (height, width) != (self.side, self.side):
            raise ConfigError(
                f"images are {height}x{width}, and model.side is {self.side}: give images of that size, or "
                "their side, a multiple of 4."
            )
        return self.classifier(self.features(images).flatten(1))


def lenet(
    num_classes: int = 10, in_channels: int = 3, side: int = 28, hidden: int = 1024, dropout: float = 0.5
) -> nn.Module:
    """LeNet.

    Args:
        num_classes: scores a sample.
        in_channels: colour planes of an image.
        side: height and width of the images, a multiple of 4.
        hidden: features between the linear layers.
        dropout: probability between them.
    """
    check_least(1, num_classes=num_classes, in_channels=in_channels, hidden=hidden)
    check_fraction(dropout=dropout)
    if side < 4 or side % 4:
        raise ConfigError(f"model.side is {side}: give a multiple of 4, as the images are halved twice.")
    return LeNet(num_classes=num_classes, in_channels=in_channels, side=side, hidden=hidden, dropout=dropout)
