"""A graph recorded anew, as a model of its own: what its analysis has to agree with."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

from torch import Tensor, nn

from netsplit.graph import Graph, capture, initial_values, rebuild
from netsplit.graph.ir import INITIALIZER

__all__ = ["assert_as_recorded", "recorded"]


def recorded(graph: Graph, model: nn.Module, batch: Sequence[Tensor]) -> Graph:
    """A full capture of the rebuilt graph, in which no node has a module."""
    values = {k: deepcopy(tensor) for k, tensor in initial_values(model, graph).items()}
    return capture(rebuild(graph, values), None, (tuple(batch), None))


def assert_as_recorded(graph: Graph, again: Graph) -> None:
    """Nodes come in the same order; their names differ, and nothing else does."""
    assert [node.op for node in graph] == [node.op for node in again]
    nodes = dict(zip(again.nodes, graph.nodes, strict=True))
    names = {INITIALIZER + k: INITIALIZER + k for k in graph.initializers}
    names |= dict(zip(again.input_variables, graph.input_variables, strict=True))
    for ours, other in zip(graph, again, strict=True):
        names |= dict(zip(other.outputs, ours.outputs, strict=True))
    for other in again.variables.values():
        wanted = replace(
            other,
            name=names[other.name],
            producer=other.producer and nodes[other.producer],
            consumers=tuple(nodes[v] for v in other.consumers),
            alias_of=other.alias_of and names[other.alias_of],
        )
        assert graph.variables[wanted.name] == wanted
    for ours, other in zip(graph, again, strict=True):
        kept = tuple(names[k] for k in other.saved), other.saved_bytes
        assert (ours.saved, ours.saved_bytes) == kept, ours.name
        assert ours.initializers == other.initializers
    for key in ("units", "colocated"):
        wanted_sets = tuple(tuple(nodes[name] for name in each) for each in getattr(again, key))
        assert getattr(graph, key) == wanted_sets, key
