"""Things to build in the tests of `netsplit.config`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Item:
    name: str
    size: int | str = 1


@dataclass(frozen=True)
class Box:
    width: int
    ratio: float = 0.5
    closed: bool = False
    label: str | None = None
    mode: Literal["fast", "slow"] = "fast"
    items: Sequence[Item] = ()
    sizes: tuple[int, ...] = ()
    rate: float | Path = 0.1
    inner: Any = None


NOT_CALLABLE = 3
