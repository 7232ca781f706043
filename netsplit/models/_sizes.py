"""Checks that the builders share; each refusal names its config key."""

from __future__ import annotations

from typing import Literal

from netsplit.errors import ConfigError

__all__ = ["Widening", "check_even", "check_fraction", "check_least"]

Widening = Literal["none", "bottleneck", "all"]


def check_least(least: int, /, **sizes: int) -> None:
    """Every size, by the name of its key, is at least `least`; else a ConfigError."""
    for name, value in sizes.items():
        if value < least:
            raise ConfigError(f"model.{name} is {value}: give at least {least}.")


def check_even(**sizes: int) -> None:
    """Every size is even and at least 2; else a ConfigError."""
    for name, value in sizes.items():
        if value < 2 or value % 2:
            raise ConfigError(f"model.{name} is {value}: give an even number of at least 2.")


def check_fraction(**values: float) -> None:
    """Every probability is at least 0 and below 1; else a ConfigError."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ConfigError(f"model.{name} is {value}: give at least 0 and less than 1.")
