"""Small models to export: the thesis's four, torchvision's, transformers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from netsplit import models
from netsplit.beside_torchvision import import_torchvision

__all__ = ["QUICK", "SLOW", "Subject"]


@dataclass(frozen=True)
class Subject:
    """A model without random operators, and its data: images of `side` or (n, `tokens`); `dense`: a mask."""

    build: Callable[[], nn.Module]
    side: int = 32
    tokens: int = 0
    width: int = 0  # of tokens that come as vectors
    dense: bool = False

    def fresh(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        torch.manual_seed(0)
        model = self.build()
        for module in model.modules():
            if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
                module.p = 0.0
            for name, child in module.named_children():
                if isinstance(child, nn.Dropout2d):  # which torch's exporter does not know in training
                    setattr(module, name, nn.Identity())
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        return model.to(dtype).train()

    def batch(self, size: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        shape: tuple[int, ...] = (size, 3, self.side, self.side)
        if self.tokens:
            shape = (size, self.tokens, self.width)
        labels: tuple[int, ...] = (size, self.side, self.side) if self.dense else (size,)
        if self.tokens and not self.width:
            labels = shape = (size, self.tokens)
            inputs = torch.randint(0, 10, shape, generator=generator)
        else:
            inputs = torch.randn(shape, generator=generator, dtype=dtype)
        return inputs, torch.randint(0, 10, labels, generator=generator)


class Encoder(nn.Module):
    """torch's own encoder with a mean over its tokens."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class Decoder(nn.Module):
    """torch's own decoder over its input twice, with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), 1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.head(self.decoder(x, x, tgt_mask=mask)[:, -1])


class Various(nn.Module):
    """Layers that the models above lack."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.group = nn.BatchNorm2d(3, momentum=0.3), nn.GroupNorm(2, 4)
        self.conv, self.up = (
            nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
            nn.ConvTranspose2d(4, 2, 2, 2),
        )
        self.slope, self.scale = nn.PReLU(), nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.linspace(0, 1, 20))
        self.head = nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.group(self.conv(self.norm(x)))
        x = self.up(nn.functional.max_pool2d(x, 3, 2, ceil_mode=True)) * self.scale
        x = nn.functional.interpolate(self.slope(x), scale_factor=0.5, mode="bicubic")
        parts = x.flatten(2).transpose(1, 2).chunk(2, dim=1)
        x = torch.einsum("ntc,nsc->nts", *parts).softmax(-1).sum(1)[:, :20].clamp(min=1e-3).log()
        return self.head(nn.functional.silu(x) + self.shift)


def _torchvision(name: str, **sizes: object) -> Callable[[], nn.Module]:
    return lambda: getattr(import_torchvision().models, name)(num_classes=10, **sizes)


def _gpt() -> nn.Module:
    return models.gpt(vocabulary=10, context=12, layers=2, heads=2, width=16)


QUICK = {
    "amoebanet_d": Subject(
        lambda: models.amoebanet_d(num_classes=10, num_layers=3, num_filters=16, small_images=True)
    ),
    "unet": Subject(
        lambda: models.unet(num_classes=10, num_convs=2, base_channels=4, depth=2, dropout=0.0), dense=True
    ),
    "unet_classic": Subject(
        lambda: models.unet_classic(num_classes=10, base_channels=4, depth=2, up="bilinear"), dense=True
    ),
    "deeplab_v3": Subject(
        lambda: models.deeplab_v3(num_classes=10, blocks=(1, 1, 1, 1), width=4), dense=True, side=64
    ),
    "wide_resnet152": Subject(lambda: models.resnet(10, (1, 1, 1, 1), 4, "bottleneck")),
    "gpt": Subject(_gpt, tokens=8),
    "encoder": Subject(Encoder, tokens=6, width=16),
    "decoder": Subject(Decoder, tokens=6, width=16),
    "various": Subject(Various, side=17),
    "squeezenet1_1": Subject(_torchvision("squeezenet1_1")),
    "mobilenet_v3_small": Subject(_torchvision("mobilenet_v3_small")),
    "vit": Subject(
        lambda: import_torchvision().models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=10),
    ),
}
SLOW = {
    "bert": Subject(lambda: models.bert(vocabulary=10, context=12, layers=2, heads=2, width=16), tokens=8),
    "u_transformer": Subject(
        lambda: models.u_transformer(num_classes=10, base_channels=8, depth=2, image_size=32), dense=True
    ),
    "googlenet": Subject(lambda: models.googlenet(num_classes=10)),
    "inception_v3": Subject(lambda: models.inception_v3(num_classes=10), side=75),
    "alexnet": Subject(_torchvision("alexnet"), side=224),
    "shufflenet_v2": Subject(_torchvision("shufflenet_v2_x0_5")),
    "densenet121": Subject(_torchvision("densenet121")),
    # Larger: its norms over two values each would make a unit in the last place a difference that counts.
    "efficientnet_b0": Subject(_torchvision("efficientnet_b0"), side=96),
    "convnext_tiny": Subject(_torchvision("convnext_tiny")),
    "mnasnet0_5": Subject(_torchvision("mnasnet0_5")),
    "mobilenet_v2": Subject(_torchvision("mobilenet_v2")),
    "regnet_y_400mf": Subject(_torchvision("regnet_y_400mf")),
    "resnext50_32x4d": Subject(_torchvision("resnext50_32x4d")),
    "swin": Subject(
        lambda: import_torchvision().models.SwinTransformer(
            [4, 4], 16, [2, 2], [2, 2], [4, 4], num_classes=10, stochastic_depth_prob=0.0
        ),
        side=64,
    ),
}
