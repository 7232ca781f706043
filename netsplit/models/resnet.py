"""ResNets of bottleneck blocks, of any depth and width, and what DeepLab takes of them.

    images -> stem -> layer1 -> layer2 -> layer3 -> layer4 -> pool -> logits
              1/4      1/4       1/8       1/16      1/32

The blocks are torchvision's, and so are the names of all parameters: what torchvision saves of a
ResNet of the same sizes loads here. He et al., "Deep Residual Learning for Image Recognition", CVPR
2016; Zagoruyko and Komodakis, "Wide Residual Networks", BMVC 2016.
"""

from __future__ import annotations

from torch import Tensor, nn

from netsplit.beside_torchvision import import_torchvision
from netsplit.errors import ConfigError
from netsplit.models._sizes import Widening, check_least

__all__ = ["EXPANSION", "ResNet", "ResNetFeatures", "check_backbone", "resnet"]

EXPANSION = 4  # channels that a bottleneck block puts out, of those of its plan


class ResNetFeatures(nn.Module):
    """Images (batch, in_channels, height, width) -> maps (batch, out_channels, height / 32, width / 32).

    With `small_images` the stem keeps the sides, which leaves 1/8. A layer in `dilated` keeps the sides of
    its maps too; its convolutions reach as far as if it had halved them.
    """

    def __init__(
        self,
        *,
        blocks: tuple[int, ...],
        width: int,
        widening: Widening = "none",
        in_channels: int = 3,
        small_images: bool = False,
        dilated: tuple[int, ...] = (),
        groups: int = 1,
        group_width: int = 64,
    ) -> None:
        super().__init__()
        # As torchvision counts: 128 of 64 doubles the middle of every block and nothing else.
        self.base_width = group_width * (2 if widening == "bottleneck" else 1)
        self.groups = groups
        planes = 2 * width if widening == "all" else width
        self.channels, self.dilation = planes, 1
        kernel, stride = (3, 1) if small_images else (7, 2)
        self.conv1 = nn.Conv2d(in_channels, planes, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self._layer(planes, blocks[0], stride=1, dilate=False)
        self.layer2 = self._layer(2 * planes, blocks[1], stride=2, dilate=2 in dilated)
        self.layer3 = self._layer(4 * planes, blocks[2], stride=2, dilate=3 in dilated)
        self.layer4 = self._layer(8 * planes, blocks[3], stride=2, dilate=4 in dilated)
        self._initialise()

    @property
    def out_channels(self) -> int:
        return self.channels

    def _layer(self, planes: int, blocks: int, *, stride: int, dilate: bool) -> nn.Sequential:
        """Blocks of which the first changes sides and channels; with the dilation of the layer before."""
        bottleneck = import_torchvision().models.resnet.Bottleneck
        dilation = self.dilation
        if dilate:
            self.dilation, stride = self.dilation * stride, 1
        out = EXPANSION * planes
        shortcut = None
        if stride != 1 or self.channels != out:
            shortcut = nn.Sequential(
                nn.Conv2d(self.channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )
        first = bottleneck(self.channels, planes, stride, shortcut, self.groups, self.base_width, dilation)
        self.channels = out
        return nn.Sequential(
            first,
            *(
                bottleneck(
                    out, planes, groups=self.groups, base_width=self.base_width, dilation=self.dilation
                )
                for _ in range(blocks - 1)
            ),
        )

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


class ResNet(ResNetFeatures):
    """Images (batch, in_channels, height, width) -> logits (batch, num_classes)."""

    def __init__(
        self,
        num_classes: int,
        blocks: tuple[int, ...],
        width: int,
        widening: Widening,
        in_channels: int,
        small_images: bool,
        groups: int,
        group_width: int,
    ) -> None:
        super().__init__(
            blocks=blocks, width=width, widening=widening, in_channels=in_channels,
            small_images=small_images, groups=groups, group_width=group_width,
        )  # fmt: skip
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

    Args:
        num_classes: scores a sample.
        blocks: bottleneck blocks in each of the four layers: (3, 4, 6, 3) is ResNet-50.
        width: channels after the stem; the last maps have 32 times as many.
        widening: "bottleneck" doubles the middle of every block (Wide-ResNet-x-2 as torchvision has it),
            "all" doubles every channel count, which is to give twice the `width`.
        in_channels: colour planes of an image.
        small_images: a stem of one 3x3 convolution, which keeps the sides: for images of 32x32.
        groups: of the 3x3 convolutions: 32 in ResNeXt (Xie et al., CVPR 2017).
        group_width: channels of each in the first layer, of 64 a `width`: 4 in ResNeXt-50 32x4d.
    """
    check_least(1, num_classes=num_classes, in_channels=in_channels, groups=groups, group_width=group_width)
    check_backbone(blocks, width)
    return ResNet(num_classes, blocks, width, widening, in_channels, small_images, groups, group_width)


def check_backbone(blocks: tuple[int, ...], width: int) -> None:
    """Four layers of at least a block each, and a width.

    Raises:
        ConfigError: something else.
    """
    if len(blocks) != 4 or min(blocks) < 1:
        raise ConfigError(f"model.blocks is {list(blocks)}: give four numbers of at least 1.")
    check_least(1, width=width)
