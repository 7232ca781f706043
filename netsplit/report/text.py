"""Names as text on a page: without control characters, as short as there is room; and links to files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote

__all__ = ["abbreviated", "clean", "link_to", "pieces"]

_WORD = 20  # characters that stay together
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)


def clean(text: str) -> str:
    """Without control characters and those that reorder what is beside them."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def pieces(text: str) -> list[str]:
    """`text` in pieces after which a line may end; within a word, where that is longer than names are."""
    parts = re.split(f"(\\S{{{_WORD}}})(?=\\S)", clean(text))
    return ["".join(parts[at : at + 2]) for at in range(0, len(parts), 2)]


def abbreviated(text: str, limit: int) -> str:
    """`text`, or its beginning, an ellipsis and its end, in which long names differ."""
    if len(text) <= limit:
        return text
    end = (limit - 1) // 3
    return f"{text[: limit - 1 - end].rstrip()}…{text[len(text) - end :].lstrip()}"


def link_to(target: Path | str | None, folder: Path) -> str | None:
    """What a page in `folder` calls `target`: a relative path, or the address as it is."""
    if target is None or isinstance(target, str):
        return target
    try:
        return quote(Path(os.path.relpath(target, folder)).as_posix())
    except ValueError:  # another drive
        return target.as_uri()
