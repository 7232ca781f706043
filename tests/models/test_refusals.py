"""Sizes that cannot be end in one sentence that names the config key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from netsplit import models
from netsplit.errors import ConfigError

REFUSED: list[tuple[Callable[..., nn.Module], dict[str, Any], str]] = [
    (models.bert, {"size": "huge"}, "size is 'huge': give one of base, large"),
    (models.bert, {"width": 100, "heads": 12}, "width is 100, which 12 heads cannot share"),
    (models.bert, {"context": 0}, "context is 0: give at least 1"),
    (models.bert, {"dropout": 1.0}, "dropout is 1.0: give at least 0 and less than 1"),
    (models.deeplab_v3, {"blocks": (1, 2, 3)}, "blocks is [1, 2, 3]: give four numbers"),
    (models.deeplab_v3, {"rates": ()}, "rates is []: give at least one number"),
    (models.deeplab_v3, {"rates": (1, 0)}, "rates is [1, 0]: give at least one number"),
    (models.deeplab_v3, {"channels": 0}, "channels is 0"),
    (models.googlenet, {"num_classes": 0}, "num_classes is 0"),
    (models.googlenet, {"dropout": -0.1}, "dropout is -0.1"),
    (models.gpt, {"size": "base"}, "size is 'base': give one of small, medium, large"),
    (models.gpt, {"heads": 7}, "width is 768, which 7 heads cannot share: give a multiple of 7"),
    (models.gpt, {"layers": 0}, "layers is 0"),
    (models.gpt, {"vocabulary": 0}, "vocabulary is 0"),
    (models.inception_v3, {"num_classes": -1}, "num_classes is -1"),
    (models.resnet, {"blocks": (3, 4, 0, 3)}, "blocks is [3, 4, 0, 3]"),
    (models.resnet, {"width": 0}, "width is 0"),
    (models.u_transformer, {"image_size": 100}, "image_size is 100: give a multiple of 16"),
    (models.u_transformer, {"base_channels": 6, "heads": 2}, "base_channels is 6: give a multiple of 4"),
    (models.u_transformer, {"base_channels": 64, "heads": 5}, "base_channels is 64, which 5 heads"),
    (models.unet, {"base_channels": 7}, "base_channels is 7: give an even number"),
    (models.unet, {"num_convs": 0}, "num_convs is 0"),
    (models.unet_classic, {"depth": 0}, "depth is 0"),
    (models.vgg19, {"hidden": 0}, "hidden is 0"),
    (models.vgg19, {"pooled": 0}, "pooled is 0"),
]


@pytest.mark.parametrize(
    ("builder", "sizes", "complaint"), REFUSED, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_size_that_cannot_be_is_refused_by_its_key(
    builder: Callable[..., nn.Module], sizes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        builder(**sizes)
    assert str(refusal.value).startswith(f"model.{complaint}")
    assert "\n" not in str(refusal.value)


@given(side=st.integers(1, 64), depth=st.integers(1, 4))
@settings(deadline=None, max_examples=20)
def test_a_u_net_takes_an_image_or_says_which_sides_it_takes(side: int, depth: int) -> None:
    with torch.device("meta"):
        model = models.unet_classic(base_channels=2, depth=depth)
        images = torch.empty(2, 3, side, side)
    if side % 2**depth == 0:
        assert model(images).shape == (2, 2, side, side)
    else:
        with pytest.raises(ConfigError, match=rf"model\.depth is {depth}.*multiples of {2**depth}\."):
            model(images)


def test_images_of_another_size_than_the_u_transformer_was_built_for_are_refused() -> None:
    with torch.device("meta"):
        model = models.u_transformer(image_size=32, base_channels=4)
    with pytest.raises(ConfigError, match=r"model\.image_size is 32, but images have 16x32 pixels"):
        model(torch.empty(2, 3, 16, 32, device="meta"))
