"""A checkpoint's files read without running what they may ask for: who sends one is not always a friend.

torch unpickles a checkpoint's metadata, and values that are no tensors, whatever they name. Here the metadata
may name torch's own descriptions alone, and values what `torch.load` takes with ``weights_only``.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from netsplit.runtime.checkpoint.tensor_parts import TensorParts, piece_at

if TYPE_CHECKING:  # they take a second to load, in every worker, and many never read
    import io

    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
    from torch.distributed.checkpoint.planner import ReadItem

__all__ = ["plain_values", "read_metadata", "reader_of"]

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


class _Descriptions(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = name in _DESCRIPTIONS.get(module, ())
        if known or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, which no checkpoint needs and which could run code: do not load it"
        )


def read_metadata(folder: Path) -> Metadata:
    """What a checkpoint has where, all of it in its own folder.

    Raises:
        pickle.UnpicklingError, or whatever the bytes ask for: there is none.
    """
    with (folder / ".metadata").open("rb") as file:
        metadata: Metadata = _Descriptions(file).load()
    for info in (metadata.storage_data or {}).values():
        if Path(info.relative_path).name != info.relative_path:
            raise pickle.UnpicklingError(f"it names {info.relative_path}, which is not in its folder")
    return metadata


def reader_of(folder: Path) -> FileSystemReader:
    """torch's, of `read_metadata`."""
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
    """torch's planner, whose values that are no tensors name what `torch.serialization` calls safe."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    class PlainValues(DefaultLoadPlanner):
        def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
            self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)

        def set_up_planner(
            self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
        ) -> None:
            parts = {key: value for key, value in state_dict.items() if isinstance(value, TensorParts)}
            super().set_up_planner(state_dict, metadata, is_coordinator)
            self.state_dict.update(parts)  # torch keeps tensors alone

        def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
            tensor: torch.Tensor = piece_at(self.state_dict, index, super().lookup_tensor)
            return tensor

    return PlainValues(flatten_state_dict=False, flatten_sharded_tensors=False)
