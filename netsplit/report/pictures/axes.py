"""Axes of pictures: round ticks, texts as short as they can be, and as much room as the texts take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from netsplit.report.pictures.bars import WIDTH

__all__ = ["BOTTOM", "GAP", "TOP", "Axis", "even_axis", "log_axis", "ticks"]

TOP = 22  # margin, where the name of the y axis stands
BOTTOM = 34  # margin, where the ticks and the name of the x axis stand
GAP = 5  # between a text and its axis, and between texts

_LEAST_LEFT = 40
_CHARACTER = 7.0  # width of one at the size of a tick, in a wide font
_FLAT = 1e-9  # relative: a shorter axis shows a single value
_SHORT = 8.0  # a logarithmic axis from a number to one so many times as large
_LARGE, _SMALL = 1e5, 1e-3  # beyond, powers of ten are told apart from the digits
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axis:
    """Ticks with their texts, and where a value stands in the picture."""

    name: str
    ticks: Sequence[float]
    texts: Sequence[str]
    of: Callable[[float], float]
    start: float
    end: float

    @property
    def room(self) -> float:
        """What the texts take to the left of the axis."""
        return max(_LEAST_LEFT, _CHARACTER * max(map(len, self.texts), default=0) + GAP)

    @property
    def beside(self) -> list[tuple[float, str]]:
        """Places and texts along an upright axis."""
        return [(self.of(value), text) for value, text in zip(self.ticks, self.texts, strict=True)]

    @property
    def below(self) -> list[tuple[float, str]]:
        """Places and texts along the bottom, from the left, without those that would cover one before."""
        shown = []
        free = 0.0
        for place, text in self.beside:
            half = _CHARACTER * len(text) / 2
            at = min(max(place, self.start - GAP + 1 + half), WIDTH - half)  # to the left stand the y axis's
            if at - half >= free:
                shown.append((at, text))
                free = at + half + GAP
        return shown


def even_axis(name: str, low: float, high: float, start: float, end: float, least_step: float = 0.0) -> Axis:
    """Even steps from `start` to `end` in the picture."""
    values = ticks(low, high, least_step)
    name, texts = _shared(name, values)
    return Axis(name, values, texts, _linear(values[0], values[-1], start, end), start, end)


def log_axis(name: str, low: float, high: float, start: float, end: float) -> Axis:
    """A logarithmic axis of numbers above 0."""
    linear = _linear(math.log(low), math.log(high), start, end)
    values = _log_ticks(low, high)
    name, texts = _shared(name, values) if high / low < _SHORT else (name, [_short(v) for v in values])
    return Axis(name, values, texts, lambda v: linear(math.log(v)), start, end)


def ticks(low: float, high: float, least_step: float = 0.0, wanted: int = 5) -> list[float]:
    """Round numbers at even steps, the first not above `low` and the last not below `high`."""
    if high - low < _FLAT * max(1.0, abs(low), abs(high)):
        room = abs(low) / 10 if abs(low) > _FLAT else 1.0
        low, high = (low, low + 1) if least_step else (low - room, low + room)
    step = 10.0 ** math.floor(math.log10((high - low) / wanted))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= wanted + 1e-9)
    step = max(step, least_step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, max(last, first + 1) + 1)]


def _shared(name: str, values: Sequence[float]) -> tuple[str, list[str]]:
    """Texts of even steps; the power of ten of very large or small ones goes to the name."""
    largest = max(map(abs, values), default=1.0)
    power = 0 if _SMALL <= largest < _LARGE else 3 * math.floor(math.log10(largest) / 3)
    scaled = [value / 10.0**power for value in values]
    step = scaled[1] - scaled[0] if len(scaled) > 1 else largest / 10.0 ** (power + 2)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    texts = [f"{value:,.{digits}f}".replace("-", "\N{MINUS SIGN}") for value in scaled]
    return f"{name} \N{MULTIPLICATION SIGN} {_power(power)}" if power else name, texts


def _linear(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * (value - low) / (high - low)


def _log_ticks(low: float, high: float) -> list[float]:
    """Even steps on a short axis; else 1, 2 and 5 times powers of ten, or on a long one the powers."""
    if high / low < _SHORT:
        return [value for value in ticks(low, high) if low <= value <= high]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if high / low < 100 else (1,)
    values = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    return [value for value in values if low <= value <= high]


def _short(value: float) -> str:
    """A tick of a logarithmic axis: as a number, or with the power of ten apart."""
    if _SMALL <= value < _LARGE:
        return f"{value:,.12g}"
    power = math.floor(math.log10(value) + 1e-9)
    digits = f"{value / 10.0**power:.6g}"
    return _power(power) if digits == "1" else f"{digits}·{_power(power)}"


def _power(power: int) -> str:
    return f"10{str(power).translate(_RAISED)}"
