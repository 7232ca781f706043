"""Checks of sizes, with their config keys, and of a model's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from netsplit.errors import ConfigError
from netsplit.tables import nbytes

__all__ = ["check_even", "check_fraction", "check_least", "within_memory"]


def check_least(least: int, /, **sizes: int) -> None:
    """Raises ConfigError: a size is below `least`."""
    for name, value in sizes.items():
        if value < least:
            raise ConfigError(f"model.{name} is {value}: give at least {least}.")


def check_even(**sizes: int) -> None:
    """Raises ConfigError: a size is not an even number of at least 2."""
    for name, value in sizes.items():
        if value < 2 or value % 2:
            raise ConfigError(f"model.{name} is {value}: give an even number of at least 2.")


def check_fraction(**values: float) -> None:
    """Raises ConfigError: a probability is not at least 0 and below 1."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ConfigError(f"model.{name} is {value}: give at least 0 and less than 1.")


@contextmanager
def within_memory() -> Iterator[None]:
    """Raises ConfigError as soon as the model's parameters exceed the free memory."""
    free, needed = psutil.virtual_memory().available, 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal needed
        needed += 0 if parameter is None or parameter.is_meta or is_lazy(parameter) else parameter.nbytes
        if needed > free:
            raise ConfigError(
                f"the model's parameters take more than {nbytes(needed)}, but this machine has "
                f"{nbytes(free)} of free memory: make the model smaller."
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
