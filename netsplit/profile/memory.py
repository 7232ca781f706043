"""Static bytes of a placement: parameters and variables, as NetSplit thesis equation (5-18) counts them.

Equation (5-18) counts every variable twice, for its value and its gradient. With n micro-batches in
flight, the values of all n are alive and the gradients of the one whose backward runs: n + 1 times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from netsplit.graph.ir import Graph, Variable

__all__ = ["copies_alive", "memory_of", "node_weight_bytes", "related_nodes", "static_bytes"]


def copies_alive(in_flight: int) -> int:
    """How often a variable counts: values of the micro-batches in flight, and one gradient."""
    return in_flight + 1


def related_nodes(variable: Variable) -> tuple[str, ...]:
    """R(j) of (5-18): the producer and every consumer of a variable."""
    return ((variable.producer,) if variable.producer is not None else ()) + variable.consumers


def node_weight_bytes(graph: Graph) -> dict[str, int]:
    """Bytes of the initializers each node holds; a shared initializer is counted at its first user."""
    seen: set[str] = set()
    weights: dict[str, int] = {}
    for node in graph:
        own = [k for k in node.initializers if k not in seen]
        seen.update(own)
        weights[node.name] = sum(graph.initializers[k].nbytes for k in own)
    return weights


def memory_of(graph: Graph, nodes: Iterable[str], alpha: int, copies: int = 2) -> int:
    """Bytes that a set of nodes needs on one device: alpha * parameters + copies * variables.

    A variable counts when its producer or any consumer is in the set.
    """
    chosen = set(nodes)
    weights = node_weight_bytes(graph)
    variables = sum(v.nbytes for v in graph.variables.values() if any(n in chosen for n in related_nodes(v)))
    return alpha * sum(weights[n] for n in chosen) + copies * variables


def static_bytes(graph: Graph, device_of: Mapping[str, str], alpha: int, copies: int = 2) -> dict[str, int]:
    """Device name to its static bytes under (5-18), for the devices that hold a node (Algorithm 1)."""
    weights = node_weight_bytes(graph)
    used = dict.fromkeys(device_of.values(), 0)
    for name, device in device_of.items():
        used[device] += alpha * weights[name]
    for variable in graph.variables.values():
        for device in {device_of[n] for n in related_nodes(variable)}:
            used[device] += copies * variable.nbytes
    return used
