"""Inception-v3: eleven modules of up to six branches of factorised convolutions.

Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016. The model is
torchvision's, without the auxiliary head.
"""

from __future__ import annotations

from typing import cast

from torch import nn

from netsplit.beside_torchvision import import_torchvision
from netsplit.models._sizes import check_fraction, check_least

__all__ = ["inception_v3"]


def inception_v3(num_classes: int = 1000, dropout: float = 0.5) -> nn.Module:
    """Inception-v3: images (batch, 3, height, width) -> logits (batch, num_classes).

    Made for sides of 299; 75 is the least.

    Args:
        num_classes: scores a sample.
        dropout: probability before the last layer.

    Raises:
        ConfigError: a size that cannot be.
    """
    check_least(1, num_classes=num_classes)
    check_fraction(dropout=dropout)
    model = import_torchvision().models.Inception3(
        num_classes=num_classes, aux_logits=False, init_weights=True, dropout=dropout
    )
    return cast(nn.Module, model)
