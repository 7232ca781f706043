"""A model that is made has room in this machine's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from netsplit.errors import ConfigError
from netsplit.tables import nbytes

__all__ = ["within_memory"]


@contextmanager
def within_memory() -> Iterator[None]:
    """Raises ConfigError: what the model is made of needs more than there is; before it is filled."""
    free, needed = psutil.virtual_memory().available, 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal needed
        needed += 0 if parameter is None or parameter.is_meta or is_lazy(parameter) else parameter.nbytes
        if needed > free:
            raise ConfigError(
                f"the model has more than {nbytes(needed)} of parameters, and this machine {nbytes(free)} "
                "of free memory: make it smaller."
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
