"""Bytes of a placement as a sum over its nodes and variables, for methods that need a linear count.

    bytes of a device = state of its nodes + bytes of every variable that one of them holds

`MemoryModel` has two such counts: the static one of NetSplit thesis, equation (5-18), and one near the
lifetimes of tensors. Alpha counts for trained parameters; frozen ones count once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from netsplit.graph.arguments import storage_bytes, storage_of
from netsplit.graph.ir import INITIALIZER, Graph, Initializer, Variable, once_of

__all__ = ["Load", "MemoryModel", "lifetimes_model", "memory_of", "node_state_bytes", "static_model"]


def related_nodes(variable: Variable) -> tuple[str, ...]:
    """R(j) of (5-18): the producer and every consumer of a variable."""
    return ((variable.producer,) if variable.producer is not None else ()) + variable.consumers


def node_state_bytes(graph: Graph, alpha: int, without: Iterable[str] = ()) -> dict[str, int]:
    """Bytes of the initializers each node holds, with gradients and moments: alpha times what is trained.

    A shared initializer counts at its first user, and only the first of several copies of a weight.

    Args:
        without: initializers that do not count.
    """
    counted = set(without)
    states: dict[str, int] = {}
    for node in graph:
        inits = {graph.initializers[k].held_as: graph.initializers[k] for k in node.initializers}
        states[node.name] = sum(_state_bytes(init, alpha) for k, init in inits.items() if k not in counted)
        counted.update(inits)
    return states


def _state_bytes(initializer: Initializer, alpha: int) -> int:
    return (alpha if initializer.requires_grad else 1) * initializer.nbytes


def _copied(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Weights that are read in copies, and the readers of each, whose devices have one."""
    copied = {init.held_as for k, init in graph.initializers.items() if init.held_as != k}
    readers: dict[str, list[str]] = {k: [] for k in copied}
    for node in graph if copied else ():
        for k in {graph.initializers[k].held_as for k in node.initializers} & copied:
            readers[k].append(node.name)
    return {k: tuple(names) for k, names in sorted(readers.items())}


@dataclass
class Load:
    """What a set of nodes holds: its bytes, and the variables in them."""

    nbytes: int = 0
    variables: set[str] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class MemoryModel:
    """A linear count of bytes, with the bytes of sets of nodes found without a pass over the graph."""

    state_bytes: Mapping[str, int]  # of every node, on its device
    variable_bytes: Mapping[str, int]  # of every variable, once on each device with one of its holders
    holders: Mapping[str, tuple[str, ...]]  # variable -> nodes, each once; the first is its producer, if any
    # A weight in copies, which is on each device with one of its readers, counts as a variable does.
    held: Mapping[str, tuple[str, ...]] = field(init=False)  # node -> variables

    def __post_init__(self) -> None:
        held: dict[str, list[str]] = {name: [] for name in self.state_bytes}
        for k, names in self.holders.items():
            for name in names:
                held[name].append(k)
        object.__setattr__(self, "held", {name: tuple(own) for name, own in held.items()})

    def load(self, nodes: Iterable[str]) -> Load:
        nodes = tuple(nodes)
        variables = {k for name in nodes for k in self.held[name]}
        states = sum(self.state_bytes[name] for name in nodes)
        return Load(states + sum(self.variable_bytes[k] for k in variables), variables)

    def union_bytes(self, a: Load, b: Load) -> int:
        """Bytes of two sets on one device: variables that both touch are held once."""
        few, many = sorted((a.variables, b.variables), key=len)
        return a.nbytes + b.nbytes - sum(self.variable_bytes[k] for k in few if k in many)

    def union(self, a: Load, b: Load) -> Load:
        return Load(self.union_bytes(a, b), a.variables | b.variables)

    @property
    def total_bytes(self) -> int:
        """Bytes of everything, on one device."""
        return sum(self.state_bytes.values()) + sum(self.variable_bytes.values())

    def by_device(self, device_of: Mapping[str, str]) -> dict[str, int]:
        """Device name to its bytes, for the devices that hold a node (thesis, Algorithm 1)."""
        used = dict.fromkeys(device_of.values(), 0)
        for name, device in device_of.items():
            used[device] += self.state_bytes[name]
        for k, nbytes in self.variable_bytes.items():
            for device in {device_of[name] for name in self.holders[k]}:
                used[device] += nbytes
        return used


@once_of
def static_model(graph: Graph, alpha: int, copies: int = 2) -> MemoryModel:
    """NetSplit thesis, equation (5-18): all variables are there at once, `copies` times each: twice, for
    value and gradient; with n micro-batches in flight n + 1 times."""
    variables, copied = graph.variables.items(), _copied(graph)
    return MemoryModel(
        node_state_bytes(graph, alpha, copied),
        {k: copies * variable.nbytes for k, variable in variables} | _copies_bytes(graph, alpha, copied),
        {k: tuple(dict.fromkeys(related_nodes(variable))) for k, variable in variables} | _prefixed(copied),
    )


@once_of
def lifetimes_model(graph: Graph, alpha: int, in_flight: int) -> MemoryModel:
    """What stays from forward to backward, of all micro-batches in flight: what autograd saves.

    A storage that some node saves counts where any node reads or makes it or a view of it; other saved bytes
    count at the operator, and inputs of the graph where they are read. Peaks of the simulator correct this
    count.
    """
    storage = {k: storage_of(graph, k) for k in graph.variables}
    saved = {storage[k] for node in graph for k in node.saved if k in storage}
    own = storage_bytes(graph)
    holders: dict[str, list[str]] = {k: [] for k in graph.variables}
    for k, variable in graph.variables.items():
        if storage[k] in holders:  # else it lives in an initializer
            holders[storage[k]].extend(related_nodes(variable))
    copied = _copied(graph)
    states = node_state_bytes(graph, alpha, copied)
    return MemoryModel(
        {node.name: states[node.name] + in_flight * node.saved_bytes for node in graph},
        {
            k: in_flight * own[k] if k in saved or variable.producer is None else 0
            for k, variable in graph.variables.items()
        }
        | _copies_bytes(graph, alpha, copied),
        {k: tuple(dict.fromkeys(names)) for k, names in holders.items()} | _prefixed(copied),
    )


def _copies_bytes(graph: Graph, alpha: int, copied: Iterable[str]) -> dict[str, int]:
    return {INITIALIZER + k: _state_bytes(graph.initializers[k], alpha) for k in copied}


def _prefixed(copied: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {INITIALIZER + k: names for k, names in copied.items()}


def memory_of(graph: Graph, nodes: Iterable[str], alpha: int, copies: int = 2) -> int:
    """Bytes that a set of nodes needs on one device under (5-18)."""
    return static_model(graph, alpha, copies).load(set(nodes)).nbytes
