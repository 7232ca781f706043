"""Parameters and buffers whole, in the controller; on devices they may be in parts."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from netsplit.graph.ir import Initializer, Region

__all__ = ["to_send", "whole_tensors"]


def whole_tensors(tensors: Mapping[str, Tensor], regions: Mapping[str, Region]) -> dict[str, Tensor]:
    """By the model's own names; parts, which `regions` names, put together."""
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        region = regions.get(name)
        if region is None:
            whole[name] = tensor
            continue
        if region.whole not in whole:
            whole[region.whole] = torch.empty(region.shape, dtype=tensor.dtype)
        region.cut(whole[region.whole], tensor.shape).copy_(tensor)
    return whole


def to_send(initializer: Initializer, values: Mapping[str, Tensor]) -> Tensor:
    """An initializer's tensor; a part without its whole's memory, which a view would take along."""
    value: Tensor = initializer.within(values).detach()
    return value if initializer.region is None or value.is_meta else value.clone()
