"""Sizes that cannot be end in one sentence that names the config key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from netsplit import models
from netsplit.errors import ConfigError

REFUSED: list[tuple[Callable[..., nn.Module], dict[str, Any], str]] = [
    (models.bert, {"size": "huge"}, "size is 'huge': give one of base, large"),
    (models.bert, {"width": 100, "heads": 12}, "width is 100, which 12 heads cannot share"),
    (models.u_transformer, {"image_size": 100}, "image_size is 100: give a multiple of 16"),
    (models.unet, {"base_channels": 7}, "base_channels is 7: give an even number"),
    (models.towers, {"top": (4,)}, "top is [4], but summed features have no top"),
    (models.dlrm, {"tables": ()}, "tables is 0"),
    (models.vgg19, {"hidden": 0}, "hidden is 0"),
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
