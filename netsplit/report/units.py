"""Numbers as text: one number of decimals in a column, so that digits stand below digits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

__all__ = ["NONE", "OVER", "as_given", "column", "decimals", "fixed", "moment", "took"]

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
