"""DeepLab-V3 on a ResNet: a class for every pixel.

    images -> ResNet, layers 3 and 4 dilated -> maps of 1/8 -+-> 1x1 ----------+
                                                             +-> 3x3, rate 12 -+
                                                             +-> 3x3, rate 24 -+-> project -> scores, enlarged
                                                             +-> 3x3, rate 36 -+
                                                             +-> mean of all --+

Chen et al., "Rethinking Atrous Convolution for Semantic Image Segmentation", 2017. The pyramid in the
middle (ASPP) is torchvision's, and so are the names of all parameters. There is no auxiliary head.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import interpolate

from netsplit.beside_torchvision import import_torchvision
from netsplit.errors import ConfigError
from netsplit.models._sizes import Widening, check_fraction, check_least
from netsplit.models.resnet import ResNetFeatures, check_backbone

__all__ = ["DeepLabV3", "deeplab_v3"]


class DeepLabV3(nn.Module):
    """Images (batch, in_channels, height, width) -> scores (batch, num_classes, height, width)."""

    def __init__(
        self,
        backbone: ResNetFeatures,
        *,
        num_classes: int,
        rates: tuple[int, ...],
        channels: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        aspp = import_torchvision().models.segmentation.deeplabv3.ASPP
        pyramid = aspp(backbone.out_channels, rates, channels)
        pyramid.project[-1].p = dropout
        self.classifier = nn.Sequential(
            pyramid,
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, num_classes, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        scores = self.classifier(self.backbone(images))
        return interpolate(scores, size=images.shape[-2:], mode="bilinear", align_corners=False)


def deeplab_v3(
    num_classes: int = 21,
    blocks: tuple[int, ...] = (3, 8, 36, 3),
    width: int = 64,
    widening: Widening = "bottleneck",
    rates: tuple[int, ...] = (12, 24, 36),
    channels: int = 256,
    dropout: float = 0.5,
    in_channels: int = 3,
) -> nn.Module:
    """DeepLab-V3; the defaults are Wide-ResNet-152 with the 21 classes of VOC.

    BatchNorm sees one value a channel and image after the pyramid's mean: give micro-batches of at least 2.

    Args:
        num_classes: scores a pixel, the background's among them.
        blocks: of the ResNet, as `resnet` has them.
        width: of the ResNet.
        widening: of the ResNet.
        rates: how far apart the taps of the pyramid's 3x3 convolutions are, in maps of 1/8 of the sides.
        channels: that each branch of the pyramid puts out.
        dropout: probability after the pyramid.
        in_channels: colour planes of an image.
    """
    check_least(1, num_classes=num_classes, channels=channels, in_channels=in_channels)
    check_backbone(blocks, width)
    check_fraction(dropout=dropout)
    if not rates or min(rates) < 1:
        raise ConfigError(f"model.rates is {list(rates)}: give at least one number, each at least 1.")
    backbone = ResNetFeatures(
        blocks=blocks, width=width, widening=widening, in_channels=in_channels, dilated=(3, 4)
    )
    return DeepLabV3(backbone, num_classes=num_classes, rates=rates, channels=channels, dropout=dropout)
