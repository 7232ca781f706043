"""A split model's checkpoint, a folder, as one mapping that other frameworks keep in a file of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from netsplit.errors import NetSplitError
from netsplit.training.parallel import ParallelModel

__all__ = ["KEY", "pack", "unpack"]

KEY = "netsplit"  # under which frameworks' files have it


def pack(parallel: ParallelModel) -> dict[str, Tensor]:
    """The files of `ParallelModel.save_checkpoint` by their paths in its folder, as bytes.

    Raises:
        NetSplitError: it cannot be written.
        WorkerError: a worker died.
    """
    with tempfile.TemporaryDirectory(prefix="netsplit-") as folder:
        place = Path(folder) / "checkpoint"
        parallel.save_checkpoint(place)
        return {
            file.relative_to(place).as_posix(): torch.frombuffer(
                bytearray(file.read_bytes()), dtype=torch.uint8
            )
            for file in sorted(place.rglob("*"))
            if file.is_file() and file.stat().st_size
        }


def unpack(parallel: ParallelModel, packed: Mapping[str, Tensor]) -> None:
    """Go on where what `pack` gave stands.

    Raises:
        NetSplitError: it is of another model or optimiser, or no such mapping.
    """
    with tempfile.TemporaryDirectory(prefix="netsplit-") as folder:
        place = (Path(folder) / "checkpoint").resolve()
        for name, content in packed.items():
            file = (place / name).resolve()
            if not file.is_relative_to(place) or not isinstance(content, Tensor):
                raise NetSplitError(f"the checkpoint has '{name}', which is no part of one of NetSplit's.")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.numpy().tobytes())
        parallel.load_checkpoint(place)
