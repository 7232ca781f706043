"""Names as text on a page: without control characters, as short as there is room; and links to files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

__all__ = [
    "NONE",
    "OVER",
    "abbreviated",
    "as_given",
    "clean",
    "column",
    "decimals",
    "fixed",
    "link_to",
    "moment",
    "pieces",
    "took",
]

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


NONE = "\N{EN DASH}"
OVER = "!"  # beyond a capacity
_SIGNIFICANT = 3  # digits that the smallest number of a column keeps
_MOST = 3  # decimals
_LONG = 1e9  # from here on with an exponent


def decimals(values: Iterable[float | None], least: int = 1) -> int:
    """So many that the smallest of the values keeps three significant digits, within reason."""
    sizes = [abs(value) for value in values if value is not None and math.isfinite(value) and value != 0]
    if not sizes:
        return least
    wanted = _SIGNIFICANT - 1 - math.floor(math.log10(min(sizes)))
    return max(least, min(_MOST, wanted))


def fixed(value: float | None, digits: int, sign: bool = False) -> str:
    """With thousands separated, and a true minus; `NONE` where there is no number."""
    if value is None or not math.isfinite(value):
        return NONE
    flag = "+" if sign else ""
    if abs(value) < _LONG:
        text = f"{value:{flag},.{digits}f}"
    else:
        mantissa, _, exponent = f"{value:{flag}.{_SIGNIFICANT - 1}e}".partition("e")
        text = f"{mantissa}e{int(exponent)}"
    return text.replace("-", "\N{MINUS SIGN}")


def as_given(values: Iterable[float | None]) -> list[str]:
    """Texts with as many decimals as the most exact of the values has: what others printed."""
    known = list(values)
    parts = [f"{value:.{_MOST}f}".rstrip("0").partition(".")[2] for value in known if value is not None]
    digits = max(map(len, parts), default=0)
    return [fixed(value, digits) for value in known]


def column(values: Iterable[float | None], scale: float = 1.0, least: int = 1) -> list[str]:
    """Texts of `scale` times the values, of equal decimals."""
    scaled = [None if value is None else scale * value for value in values]
    digits = decimals(scaled, least)
    return [fixed(value, digits) for value in scaled]


def moment(when: datetime | None) -> str:
    return NONE if when is None else f"{when:%Y-%m-%d %H:%M} UTC"


def took(seconds: float | None) -> str:
    """``48 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
