"""GoogLeNet and Inception-v3: modules that run several branches on one input and join what they give.

Szegedy et al., "Going Deeper with Convolutions", CVPR 2015: nine modules of four branches; and "Rethinking
the Inception Architecture for Computer Vision", CVPR 2016: eleven of up to six. The models are torchvision's,
which has BatchNorm and 3x3 convolutions where the first paper has 5x5; without auxiliary heads.
"""

from __future__ import annotations

from typing import cast

from torch import nn

from netsplit.beside_torchvision import import_torchvision
from netsplit.models._sizes import check_fraction, check_least

__all__ = ["googlenet", "inception_v3"]


def googlenet(num_classes: int = 1000, dropout: float = 0.2) -> nn.Module:
    """GoogLeNet: images (batch, 3, height, width) -> logits (batch, num_classes); made for sides of 224.

    Args:
        num_classes: scores a sample.
        dropout: probability before the last layer.
    """
    check_least(1, num_classes=num_classes)
    check_fraction(dropout=dropout)
    model = import_torchvision().models.GoogLeNet(
        num_classes=num_classes, aux_logits=False, init_weights=True, dropout=dropout
    )
    return cast(nn.Module, model)


def inception_v3(num_classes: int = 1000, dropout: float = 0.5) -> nn.Module:
    """Inception-v3: images (batch, 3, height, width) -> logits (batch, num_classes).

    Made for sides of 299; 75 is the least.

    Args:
        num_classes: scores a sample.
        dropout: probability before the last layer.
    """
    check_least(1, num_classes=num_classes)
    check_fraction(dropout=dropout)
    model = import_torchvision().models.Inception3(
        num_classes=num_classes, aux_logits=False, init_weights=True, dropout=dropout
    )
    return cast(nn.Module, model)
