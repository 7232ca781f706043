"""The precision that a graph's operators run in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from netsplit.graph.ir import Graph

__all__ = ["autocast_of"]


def autocast_of(graph: Graph, device: torch.device) -> AbstractContextManager[Any]:
    """What to enter around a run of the graph's nodes: autocast to `graph.autocast`, if it has one."""
    name = getattr(graph, "autocast", None)
    if name is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, name))
