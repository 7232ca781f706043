"""How `torch.distributed.checkpoint` writes and reads here: parts of tensors, and plain values alone.

device 0: w[0:4] ─┐
                  ├─► "model.w", of w's shape, in two chunks ─► read whole, or in other parts
device 1: w[4:8] ─┘

torch unpickles a checkpoint's metadata and its values other than tensors, which can run code. Here
metadata may contain only torch's own classes, and values only what `torch.load` takes with ``weights_only``.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from netsplit.graph.ir import Region

if TYPE_CHECKING:  # they take a second to load, in every worker, and many never save or read
    import io

    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex
    from torch.distributed.checkpoint.planner import ReadItem, WriteItem

__all__ = [
    "TensorParts", "piece_at", "plain_values", "put_tensor", "read_metadata", "reader_of",
    "whole_tensors",
]  # fmt: skip

_DESCRIPTIONS = {
    "collections": {"OrderedDict"},
    "pathlib": {"PosixPath", "WindowsPath"},
    "pathlib._local": {"PosixPath", "WindowsPath"},  # of Python 3.13
    "torch": {"Size"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.serialization": {"_get_layout"},
}  # fmt: skip


@dataclass
class TensorParts:
    """One device's parts of a tensor, for `torch.distributed.checkpoint` to write or fill."""

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
    """A state's piece by key and offset; `other` finds what is no part."""
    parts = state[index.fqn]
    return parts.pieces[tuple(index.offset or ())] if isinstance(parts, TensorParts) else other(index)


def put_tensor(state: dict[str, Any], key: str, tensor: Tensor, region: Region | None) -> None:
    """Add a whole tensor to a state, or a part to those of its whole."""
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


class _Descriptions(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = name in _DESCRIPTIONS.get(module, ())
        if known or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, which no checkpoint needs and which could run code: do not load "
            "this file"
        )


def read_metadata(folder: Path) -> Metadata:
    """The checkpoint's metadata; raises pickle.UnpicklingError for files outside its folder."""
    with (folder / ".metadata").open("rb") as file:
        metadata: Metadata = _Descriptions(file).load()
    for info in (metadata.storage_data or {}).values():
        if Path(info.relative_path).name != info.relative_path:
            raise pickle.UnpicklingError(f"it names {info.relative_path}, which is not in its folder")
    return metadata


def reader_of(folder: Path) -> FileSystemReader:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import StorageMeta

    class WaryReader(FileSystemReader):
        def read_metadata(self, *_: Any, **__: Any) -> Metadata:
            metadata = read_metadata(folder)
            metadata.storage_meta = metadata.storage_meta or StorageMeta()
            metadata.storage_meta.load_id = self.load_id
            return metadata

    return WaryReader(folder)


def plain_values() -> DefaultLoadPlanner:
    """torch's planner, which unpickles only what `torch.serialization` calls safe."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    class PlainValues(DefaultLoadPlanner):
        def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
            self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)

        def set_up_planner(
            self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
        ) -> None:
            parts = {key: value for key, value in state_dict.items() if isinstance(value, TensorParts)}
            super().set_up_planner(state_dict, metadata, is_coordinator)
            self.state_dict.update(parts)  # torch's loads only tensors

        def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
            tensor: torch.Tensor = piece_at(self.state_dict, index, super().lookup_tensor)
            return tensor

    return PlainValues(flatten_state_dict=False, flatten_sharded_tensors=False)
