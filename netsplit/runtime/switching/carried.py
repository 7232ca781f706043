"""A device's training state as it comes from others: read like a checkpoint, of which no file is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from netsplit.runtime.checkpoint.files import Kind, Saved, kind_of

__all__ = ["CarriedState"]


class CarriedState(Saved):
    """State under the keys of a checkpoint, whose tensors are here.

    A tensor that is where it is wanted is handed over, not copied: who gave it has no more use for it.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.folder = Path("the other devices")
        self.entries = dict(state)
        self._index()

    def kind(self, place: str) -> Kind | None:
        value = self.entries.get(place)
        return kind_of(value) if isinstance(value, Tensor) else None

    def blank(
        self, place: str, device: torch.device | None = None, shape: tuple[int, ...] | None = None
    ) -> Any:
        value = self.entries[place]
        return value.to(device or "cpu") if isinstance(value, Tensor) else None

    def read(self, flat: dict[str, Any]) -> dict[str, Any]:
        for place, value in flat.items():
            source = self.entries[place]
            if not isinstance(value, Tensor) or not isinstance(source, Tensor):
                flat[place] = source
            elif value.data_ptr() != source.data_ptr() or value.device != source.device:
                value.copy_(source)
        return flat
