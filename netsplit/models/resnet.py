"""ResNets of bottleneck blocks, of any depth and width, and DeepLab-V3 on them.

    images -> stem -> layer1 -> layer2 -> layer3 -> layer4 -> pool -> logits
              1/4      1/4       1/8       1/16      1/32

Blocks and parameter names are torchvision's, whose checkpoints of the same sizes load here.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.functional import interpolate

from netsplit.beside_torchvision import import_torchvision
from netsplit.errors import ConfigError
from netsplit.models.sizes import check_fraction, check_least

__all__ = ["deeplab_v3", "resnet"]

Widening = Literal["none", "bottleneck", "all"]


class ResNetFeatures(nn.Module):
    """Images (batch, in_channels, height, width) -> maps (batch, out_channels, height / 32, width / 32).

    With `small_images` the stem keeps the sides, which leaves 1/8. If `dilated`, layers 3 and 4 keep the
    sides too, with the same receptive field.
    """

    def __init__(
        self,
        blocks: tuple[int, ...],
        width: int,
        widening: Widening = "none",
        in_channels: int = 3,
        small_images: bool = False,
        dilated: bool = False,
        groups: int = 1,
        group_width: int = 64,
    ) -> None:
        super().__init__()
        vision = import_torchvision().models.resnet
        planes = 2 * width if widening == "all" else width
        # Attributes that torchvision's layer builder reads; a base of 128 doubles the middle of every block.
        self._norm_layer, self.inplanes, self.dilation, self.groups = nn.BatchNorm2d, planes, 1, groups
        self.base_width = group_width * (2 if widening == "bottleneck" else 1)
        kernel, stride = (3, 1) if small_images else (7, 2)
        self.conv1 = nn.Conv2d(in_channels, planes, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, stride=2, padding=1)
        layers = [
            vision.ResNet._make_layer(
                self, vision.Bottleneck, planes * 2**i, count, 1 if i == 0 else 2, dilated and i >= 2
            )
            for i, count in enumerate(blocks)
        ]
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.out_channels = self.inplanes
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


class ResNet(ResNetFeatures):
    """Images (batch, in_channels, height, width) -> logits (batch, num_classes)."""

    def __init__(self, num_classes: int, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(self.out_channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.avgpool(super().forward(images)).flatten(1))


def resnet(
    num_classes: int = 1000,
    blocks: tuple[int, ...] = (3, 8, 36, 3),
    width: int = 64,
    widening: Widening = "none",
    in_channels: int = 3,
    small_images: bool = False,
    groups: int = 1,
    group_width: int = 64,
) -> nn.Module:
    """A ResNet; the defaults are ResNet-152's.

    He et al., CVPR 2016; Zagoruyko and Komodakis, "Wide Residual Networks", BMVC 2016.

    Args:
        blocks: bottleneck blocks in each of the four layers: (3, 4, 6, 3) is ResNet-50.
        width: channels after the stem; the last maps have 32 times as many.
        widening: "bottleneck" doubles the middle of every block (Wide-ResNet-x-2 as torchvision has it),
            "all" doubles every channel count, which is to give twice the `width`.
        small_images: a stem of one 3x3 convolution, which keeps the sides: for images of 32x32.
        groups: of the 3x3 convolutions: 32 in ResNeXt (Xie et al., CVPR 2017).
        group_width: channels of each in the first layer, of 64 a `width`: 4 in ResNeXt-50 32x4d.
    """
    check_least(1, num_classes=num_classes, in_channels=in_channels, groups=groups, group_width=group_width)
    check_backbone(blocks, width)
    return ResNet(
        num_classes,
        blocks=blocks,
        width=width,
        widening=widening,
        in_channels=in_channels,
        small_images=small_images,
        groups=groups,
        group_width=group_width,
    )


def check_backbone(blocks: tuple[int, ...], width: int) -> None:
    """Four layers of at least a block each, and a width; else a ConfigError."""
    if len(blocks) != 4 or min(blocks) < 1:
        raise ConfigError(f"model.blocks is {list(blocks)}: give four numbers of at least 1.")
    check_least(1, width=width)


class DeepLabV3(nn.Module):
    """Images (batch, in_channels, height, width) -> scores (batch, num_classes, height, width).

    images -> ResNet, layers 3 and 4 dilated -> maps of 1/8 -+-> 1x1 ----------+
                                                             +-> 3x3, rate 12 -+
                                                             +-> 3x3, rate 24 -+-> project -> scores, enlarged
                                                             +-> 3x3, rate 36 -+
                                                             +-> mean of all --+
    """

    def __init__(
        self,
        backbone: ResNetFeatures,
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

    Chen et al., "Rethinking Atrous Convolution for Semantic Image Segmentation", 2017. No auxiliary head.
    BatchNorm sees one value a channel and image after the pyramid's mean: give micro-batches of at least 2.

    Args:
        num_classes: scores a pixel, the background's among them.
        rates: how far apart the taps of the pyramid's 3x3 convolutions are, in maps of 1/8 of the sides.
        channels: that each branch of the pyramid puts out.
    """
    check_least(1, num_classes=num_classes, channels=channels, in_channels=in_channels)
    check_backbone(blocks, width)
    check_fraction(dropout=dropout)
    if not rates or min(rates) < 1:
        raise ConfigError(f"model.rates is {list(rates)}: give at least one number, each at least 1.")
    backbone = ResNetFeatures(blocks, width, widening, in_channels, dilated=True)
    return DeepLabV3(backbone, num_classes, rates, channels, dropout)
