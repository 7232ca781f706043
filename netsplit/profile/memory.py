"""Static bytes of a placement: parameters and variables, as NetSplit thesis equation (5-18) counts them.

Its alpha is of parameters that are trained: what is frozen has neither gradient nor moments, and counts once.

Equation (5-18) counts every variable twice, for its value and its gradient. With n micro-batches in
flight, the values of all n are alive and the gradients of the one whose backward runs: n + 1 times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from netsplit.graph.ir import Graph, Variable

__all__ = [
    "copies_alive",
    "memory_of",
    "node_state_bytes",
    "node_weight_bytes",
    "related_nodes",
    "static_bytes",
]


def copies_alive(in_flight: int) -> int:
    """How often a variable counts: values of the micro-batches in flight, and one gradient."""
    return in_flight + 1


def related_nodes(variable: Variable) -> tuple[str, ...]:
    """R(j) of (5-18): the producer and every consumer of a variable."""
    return ((variable.producer,) if variable.producer is not None else ()) + variable.consumers


def node_weight_bytes(graph: Graph) -> dict[str, int]:
    """Bytes of the initializers each node holds; a shared initializer is counted at its first user."""
    return node_state_bytes(graph, alpha=1)


def node_state_bytes(graph: Graph, alpha: int) -> dict[str, int]:
    """As `node_weight_bytes`, with gradients and moments: alpha times what is trained."""
    seen: set[str] = set()
    states: dict[str, int] = {}
    for node in graph:
        own = [graph.initializers[k] for k in node.initializers if k not in seen]
        seen.update(node.initializers)
        states[node.name] = sum((alpha if init.requires_grad else 1) * init.nbytes for init in own)
    return states


def memory_of(graph: Graph, nodes: Iterable[str], alpha: int, copies: int = 2) -> int:
    """Bytes that a set of nodes needs on one device: `node_state_bytes` + copies * variables.

    A variable counts when its producer or any consumer is in the set.
    """
    chosen = set(nodes)
    states = node_state_bytes(graph, alpha)
    variables = sum(v.nbytes for v in graph.variables.values() if any(n in chosen for n in related_nodes(v)))
    return sum(states[n] for n in chosen) + copies * variables


def static_bytes(graph: Graph, device_of: Mapping[str, str], alpha: int, copies: int = 2) -> dict[str, int]:
    """Device name to its static bytes under (5-18), for the devices that hold a node (Algorithm 1)."""
    states = node_state_bytes(graph, alpha)
    used = dict.fromkeys(device_of.values(), 0)
    for name, device in device_of.items():
        used[device] += states[name]
    for variable in graph.variables.values():
        for device in {device_of[n] for n in related_nodes(variable)}:
            used[device] += copies * variable.nbytes
    return used
