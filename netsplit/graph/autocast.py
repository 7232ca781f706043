"""Autocast, as a graph names it.

A graph's nodes hold no casts: whoever runs them enters ``autocast_of(graph, device)`` around a forward, and
leaves it before the backward. The graph's variables have the dtypes that they then get.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph

__all__ = ["autocast_context", "autocast_of", "refuse_surrounding"]

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast_of(graph: Graph, device: torch.device | str) -> AbstractContextManager[Any]:
    """What to run nodes of `graph` in, on `device`; to be entered any number of times, one after another."""
    return autocast_context(graph.autocast, device)


def autocast_context(autocast: str | None, device: torch.device | str) -> AbstractContextManager[Any]:
    """`torch.autocast` to a dtype given by its name; None: a context that does nothing.

    Raises:
        ConfigError: another dtype than bfloat16 and float16.
    """
    if autocast is None:
        return nullcontext()
    if autocast not in _DTYPES:
        raise ConfigError(f"autocast is '{autocast}': give {' or '.join(_DTYPES)}, or null for none.")
    context: AbstractContextManager[Any] = torch.autocast(torch.device(device).type, _DTYPES[autocast])
    return context


def refuse_surrounding(autocast: str | None) -> None:
    """Refuse a call within the caller's own `torch.autocast`, which no worker is in.

    Args:
        autocast: what the step is captured under, which such a context may repeat.

    Raises:
        ConfigError: it says which argument does it.
    """
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            dtype = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
            if dtype != autocast:
                raise ConfigError(
                    f"NetSplit was called within torch.autocast('{kind}', torch.{dtype}), which workers do "
                    f"not inherit: leave that context and give parallelize(autocast='{dtype}')."
                )
