"""Parts of a tensor in a checkpoint: under the whole's key, at their offsets.

device 0: w[0:4] ─┐
                  ├─► "model.w", of w's shape, in two chunks ─► read whole, or in other parts
device 1: w[4:8] ─┘
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from netsplit.graph.ir import Region

if TYPE_CHECKING:  # it takes a second to load, in every worker, and many never save
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem
from netsplit.graph.ir import Initializer

__all__ = ["TensorParts", "piece_at", "put_tensor", "to_send", "whole_tensors"]


@dataclass
class TensorParts:
    """What one device has of a tensor, for `torch.distributed.checkpoint` to write, or to read into."""

    shape: tuple[int, ...]  # of the whole
    pieces: dict[tuple[int, ...], Tensor] = field(default_factory=dict)  # by their offsets

    def __create_write_items__(self, fqn: str, _: Any) -> list[WriteItem]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk,
                    properties=TensorProperties.create_from_tensor(tensor),
                    size=torch.Size(self.shape),
                ),
            )
            for chunk, tensor in zip(self.__create_chunk_list__(), self.pieces.values(), strict=True)
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [
            ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=tensor.size())
            for offsets, tensor in self.pieces.items()
        ]


def piece_at(state: Mapping[str, Any], index: MetadataIndex, other: Callable[[MetadataIndex], Any]) -> Any:
    """What a state has under a key and an offset; `other` finds what is no part."""
    parts = state[index.fqn]
    return parts.pieces[tuple(index.offset or ())] if isinstance(parts, TensorParts) else other(index)


def put_tensor(state: dict[str, Any], key: str, tensor: Tensor, region: Region | None) -> None:
    """Add a tensor to what is written or read: a whole one, or a part to those of its whole."""
    if region is None:
        state[key] = tensor
        return
    parts = state.setdefault(key, TensorParts(region.shape))
    parts.pieces[region.offsets] = tensor


def whole_tensors(tensors: Mapping[str, Tensor], regions: Mapping[str, Region]) -> dict[str, Tensor]:
    """Tensors by the model's own names; parts, which `regions` names, put together."""
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
