"""Every model of `conf/model/`: how many parameters it has, and a batch that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.utils.data import default_collate

from netsplit.config import build
from netsplit.data import records

__all__ = ["CONF", "SUBJECTS", "Subject", "config_of", "count", "on_meta"]

CONF = Path(__file__).resolve().parents[2] / "conf"


@dataclass(frozen=True)
class Subject:
    """Parameters; sides of the images, or tokens a sample, or sizes of several inputs and of categories;
    `dense`: a class for each pixel."""

    parameters: int
    side: int = 0
    tokens: int = 0
    dense: bool = False
    numbers: tuple[int, ...] = ()
    categories: tuple[int, ...] = ()

    def batch(self, name: str, size: int, device: str = "cpu") -> tuple[tuple[Tensor, ...], Tensor]:
        """Inputs and targets of `size` samples, drawn alike every time."""
        if self.numbers or self.categories:
            data = records(self.numbers, self.categories, num_classes=config_of(name).num_classes)
            inputs, targets = default_collate([data.train[i] for i in range(size)])
            every = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
            return tuple(each.to(device) for each in every), targets.to(device)
        image, targets = self._picture_or_text(name, size, device)
        return (image,), targets

    def _picture_or_text(self, name: str, size: int, device: str) -> tuple[Tensor, Tensor]:
        config = config_of(name)
        classes = config.get("num_classes") or config.vocabulary
        generator = torch.Generator().manual_seed(3)
        if self.tokens:
            inputs = torch.randint(0, classes, (size, self.tokens), generator=generator)
            targets = torch.randint(0, classes, (size, self.tokens), generator=generator)
        else:
            if device == "meta":
                inputs = torch.empty(size, 3, self.side, self.side, device="meta")
            else:
                inputs = torch.randn(size, 3, self.side, self.side, generator=generator)
            shape = (size, self.side, self.side) if self.dense else (size,)
            targets = torch.randint(0, classes, shape, generator=generator)
        return inputs.to(device), targets.to(device)


SUBJECTS = {
    "alexnet": Subject(61_100_840, side=224),
    "alexnet_small": Subject(179_674, side=32),
    "amoebanet_d": Subject(122_470_120, side=224),
    "amoebanet_d_small": Subject(391_354, side=32),
    "bert": Subject(109_514_298, tokens=512),
    "bert_small": Subject(839_523, tokens=32),
    "candle_uno": Subject(820_948_704, numbers=(1, 1, 942, 5270, 2048, 5270, 2048)),
    "deeplab_v3": Subject(188_740_181, side=224, dense=True),
    "deeplab_v3_all": Subject(263_588_757, side=224, dense=True),
    "deeplab_v3_small": Subject(398_899, side=64, dense=True),
    "dlrm": Subject(256_025_154, numbers=(4,), categories=(1_000_000,) * 4),
    "gnmt": Subject(262_046_976, tokens=50),
    "gnmt_small": Subject(251_683, tokens=32),
    "googlenet": Subject(6_624_904, side=224),
    "googlenet_small": Subject(5_610_154, side=32),
    "gpt": Subject(124_439_808, tokens=1024),
    "gpt_small": Subject(835_072, tokens=32),
    "inception_v3": Subject(23_834_568, side=299),
    "inception_v3_small": Subject(21_806_058, side=75),
    "lenet": Subject(3_276_234, side=28),
    "mlp": Subject(956_301_312, numbers=(1024, 1024)),
    "resnet152": Subject(60_192_808, side=224),
    "resnet152_small": Subject(187_922, side=32),
    "resnet200": Subject(64_673_832, side=224),
    "resnet50": Subject(25_557_032, side=224),
    "resnext50": Subject(25_028_904, side=224),
    "rnnlm": Subject(66_034_000, tokens=35),
    "rnnlm_small": Subject(289_635, tokens=32),
    "transformer": Subject(63_082_496, tokens=512),
    "transformer_small": Subject(675_200, tokens=32),
    "u_transformer": Subject(36_626_306, side=256, dense=True),
    "u_transformer_small": Subject(143_299, side=64, dense=True),
    "unet": Subject(232_687_328, side=192, dense=True),
    "unet_classic": Subject(31_037_698, side=256, dense=True),
    "unet_classic_small": Subject(86_155, side=64, dense=True),
    "unet_small": Subject(70_100, side=64, dense=True),
    "vgg19": Subject(143_667_240, side=224),
    "vgg19_small": Subject(1_289_946, side=32),
    "wide_resnet152": Subject(174_658_344, side=224),
    "wide_resnet152_all": Subject(236_350_568, side=224),
    "wide_resnet152_small": Subject(579_994, side=32),
    "xdl": Subject(256_132_098, categories=(1_000_000,) * 4),
}
"""By the name of the config. Sides and tokens are those the model is made for; the small ones' are small."""


@cache
def config_of(name: str) -> DictConfig:
    """The composed node `model`."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(f"model/{name}").model


@cache
def on_meta(name: str) -> nn.Module:
    """The config's model without memory for its parameters."""
    with torch.device("meta"):
        model = build(config_of(name))
    assert isinstance(model, nn.Module)
    return model


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
