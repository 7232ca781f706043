"""What a recording notes of an operator call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

__all__ = ["RecordedCall"]


@dataclass
class RecordedCall:
    """One operator call. References in templates are to variables and initializers by name."""

    name: str
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[str]
    module: str
    source: str
    no_grad: bool
    autocast: str | None
    checkpoint: str
    saved: list[Tensor] = field(default_factory=list)
    random: bool = False
    writes: tuple[tuple[str, str], ...] = ()
    blocked: tuple[str, ...] = ()
    default_dtype: str | None = None
