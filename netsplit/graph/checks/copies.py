"""Copies of tensors and of a graph's calls, which a run may change."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

from torch import Tensor, nn

from netsplit.graph.batches.strides import copy_as_it_lies
from netsplit.graph.ir import Graph

__all__ = ["copies", "own", "with_own_calls"]


def with_own_calls(graph: Graph) -> Graph:
    """What whole modules keep in Python is then another's than the graph's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch, about copies of its own structures
        return replace(graph, calls=copy.deepcopy(dict(graph.calls)))


def own(tensor: Tensor, trained: bool) -> Tensor:
    copied = tensor.detach().clone()
    return nn.Parameter(copied) if trained else copied


def copies(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(map(copy_as_it_lies, tensors))
