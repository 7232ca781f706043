"""Numbers of a described cluster, as configs give them."""

from __future__ import annotations

import math

from netsplit.cluster.local import parse_bytes
from netsplit.errors import ConfigError

__all__ = ["given_capacity", "given_count", "given_number", "given_rate", "given_speed"]

LARGEST_BYTES = 2**60  # sums of capacities stay below what a 64-bit integer holds


def given_count(value: object) -> int:
    whole = value if isinstance(value, int) and not isinstance(value, bool) else 0
    if isinstance(value, float) and value.is_integer():
        whole = int(value)
    if whole < 1:
        raise ConfigError(
            f"cluster.devices is {value!r}: give a whole number of at least 1, or a list of them."
        )
    return whole


def given_number(value: object, key: str) -> float:
    """A finite number of 0 or more."""
    try:
        number = math.nan if isinstance(value, bool) else float(str(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ConfigError(f"{key} is {value!r}: give a number of 0 or more.")
    return number


def given_speed(value: object, key: str) -> float:
    number = given_number(value, key)
    if number == 0:
        raise ConfigError(f"{key} is {value!r}: give more than 0; 1 is as fast as measured.")
    return number


def given_rate(value: object, key: str) -> float:
    """Bytes per second of a number or a text such as ``"12GB"`` or ``"12 GB/s"``."""
    rate = _size(str(value).strip().removesuffix("/s"), key, "bytes per second, such as 1e9 or 12GB")
    if rate <= 0:
        raise ConfigError(f"{key} is {value!r}: give more than 0 bytes per second.")
    return rate


def given_capacity(value: object, key: str) -> int | float:
    """Bytes as an int, a fraction as a float."""
    accepted = "bytes, a size such as 16GB, or a fraction of what the graph needs such as 40%"
    text = str(value).strip()
    if text.endswith("%"):
        try:
            fraction = float(text[:-1]) / 100
        except ValueError:
            fraction = math.nan
        if not 0 < fraction < math.inf:
            raise ConfigError(f"{key} is {value!r}: give {accepted}.")
        return fraction
    nbytes = int(_size(text, key, accepted))
    if nbytes < 1:
        raise ConfigError(f"{key} is {value!r}: give {accepted}.")
    if nbytes > LARGEST_BYTES:
        raise ConfigError(f"{key} is {value!r}: give at most {LARGEST_BYTES} bytes.")
    return nbytes


def _size(text: str, key: str, accepted: str) -> float:
    try:
        number = float(text)
    except ValueError:
        try:
            return float(parse_bytes(text, key))
        except ConfigError:
            number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{key} is {text!r}: give {accepted}.")
    return number
