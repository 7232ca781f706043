"""How tensors lie in memory, and what a graph's operators do to it, as running them without data showed.

Which variables carry a gradient, which share storage and which storage is written in place: all that
placement must respect (DESIGN.md, invariants 3 and 4).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from netsplit.graph.ir import INITIALIZER, Graph
from netsplit.graph.quotient import Sets, joined, strong_components

__all__ = [
    "Facts", "Strides", "analyse", "carries", "copy_as_it_lies", "is_spread", "kept_for_backward",
    "memory_order", "repeated_dims", "storage_id", "strays",
]  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What running a graph showed of its tensors: their memory, by any name for it, and their gradients.

    `carrying`: variables through which a gradient goes on. `writes`: node -> ("var" | "init", name) of what
    it writes in place.
    """

    variables: Mapping[str, Hashable]
    initializers: Mapping[str, Hashable]
    carrying: Collection[str]
    writes: Mapping[str, tuple[tuple[str, str], ...]]

    @cached_property
    def written(self) -> dict[Hashable, list[str]]:
        """Storage -> nodes that write it in place."""
        writers: dict[Hashable, list[str]] = {}
        for name, references in self.writes.items():
            for tag, k in references:
                storage = self.variables[k] if tag == "var" else self.initializers[k]
                writers.setdefault(storage, []).append(name)
        return writers


def analyse(graph: Graph, facts: Facts) -> Graph:
    """`graph` with gradients, aliases, in-place units and colocated sets."""
    owner = {storage: INITIALIZER + name for name, storage in facts.initializers.items()}
    reached = _reached(graph, facts)
    variables = {}
    for k, variable in graph.variables.items():
        first = owner.setdefault(facts.variables[k], k)
        alias = None if first == k else first
        if (variable.requires_grad, variable.alias_of) != (k in reached, alias):
            variable = replace(variable, requires_grad=k in reached, alias_of=alias)
        variables[k] = variable
    units = _in_place_units(graph, facts)
    return replace(graph, variables=variables, units=units, colocated=_colocated(graph, facts, units))


def kept_for_backward(
    tensors: Iterable[torch.Tensor], local: Mapping[str, torch.Tensor], own: Collection[Hashable]
) -> tuple[tuple[str, ...], int]:
    """The variables that autograd saves at a node, and bytes of what else it keeps alive.

    Args:
        tensors: that it saves.
        local: the node's variables.
        own: storages of initializers, which are alive anyway.
    """
    name_of = {storage_id(tensor): k for k, tensor in local.items()}
    names: dict[str, None] = {}
    other: dict[int, int] = {}
    for tensor in tensors:
        key = storage_id(tensor)
        if key in name_of:
            names[name_of[key]] = None
        elif key not in own:
            other[key] = tensor.untyped_storage().nbytes()
    return tuple(names), sum(other.values())


def _reached(graph: Graph, facts: Facts) -> set[str]:
    """Variables through which a gradient goes on to an initializer.

    Not those that carry one only because the model's code called ``requires_grad_()`` on an input.
    """
    memory: set[Hashable] = set()  # that gradients go through, whichever of its views they take
    for node in graph:
        trained = any(graph.initializers[k].requires_grad for k in node.initializers)
        if trained or any(facts.variables[k] in memory for k in node.inputs):
            written = [k for tag, k in facts.writes.get(node.name, ()) if tag == "var"]
            memory |= {facts.variables[k] for k in (*filter(None, node.outputs), *written)}
    return {k for k in graph.variables if facts.variables[k] in memory and k in facts.carrying}


def carries(tensor: torch.Tensor) -> bool:
    """Whether a gradient goes through the tensor; a leaf that is no initializer hands none on."""
    try:
        return tensor.requires_grad and not tensor.is_leaf
    except RuntimeError:  # torch tells no more of a view made without autograd whose base was written since
        return False


def storage_id(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _touching(graph: Graph, facts: Facts) -> dict[Hashable, list[str]]:
    """Storage -> the nodes that make or read a variable or initializer in it, in order."""
    nodes_of: dict[Hashable, dict[str, None]] = {}
    for node in graph:
        names = (*node.inputs, *(k for k in node.outputs if k))
        storages = [facts.variables[k] for k in names] + [facts.initializers[k] for k in node.initializers]
        for storage in storages:
            nodes_of.setdefault(storage, {})[node.name] = None
    return {key: list(nodes) for key, nodes in nodes_of.items()}


def _in_place_units(graph: Graph, facts: Facts) -> Sets:
    """Per written storage: all nodes that touch it, but for those that only see it after the last write."""
    if not facts.written:
        return ()
    groups = []
    touching = _touching(graph, facts)
    owned = set(facts.initializers.values())
    for key, writers in facts.written.items():
        last = max(graph.position[name] for name in writers)
        members = [
            name
            for name in touching[key]
            if graph.position[name] <= last or key in owned or _reads_older(graph, facts, name, key, last)
        ]
        groups.append(_convex_closure(graph, members))
    return _without_circles(graph, _merged(graph, groups))


def _without_circles(graph: Graph, units: Sets) -> Sets:
    """Units that each need something of the other (two buffers that change places) become one."""
    whole = joined(graph, units)
    number = {name: i for i, unit in enumerate(whole) for name in unit}
    edges = ((number[u], number[v]) for v, feeders in graph.predecessors.items() for u in feeders)
    circles: dict[int, list[str]] = {}
    for unit, component in zip(whole, strong_components(len(whole), edges), strict=True):
        circles.setdefault(component, []).extend(unit)
    return _merged(graph, circles.values())


def _reads_older(graph: Graph, facts: Facts, name: str, key: Hashable, last: int) -> bool:
    """Whether a node reads the storage under a name it had before its last write."""
    for k in graph.nodes[name].inputs:
        if facts.variables[k] == key:
            producer = graph.variables[k].producer
            if producer is None or graph.position[producer] < last:
                return True
    return False


def _convex_closure(graph: Graph, members: list[str]) -> list[str]:
    """`members` and every node on a path between two of them."""
    first, last = (f(graph.position[n] for n in members) for f in (min, max))
    inside = set(members)
    window = [n for n in graph.nodes if first <= graph.position[n] <= last]
    below: set[str] = set()
    for name in window:
        if name in inside or any(u in below for u in graph.predecessors[name]):
            below.add(name)
    above: set[str] = set()
    for name in reversed(window):
        if name in inside or any(v in above for v in graph.successors[name]):
            above.add(name)
    return [name for name in window if name in below and name in above]


def _colocated(graph: Graph, facts: Facts, units: Sets) -> Sets:
    groups: list[list[str]] = [list(unit) for unit in units]
    users: dict[str, list[str]] = {}
    for node in graph:
        for name in node.initializers:
            users.setdefault(name, []).append(node.name)
        aliased = {facts.variables[k]: k for k in node.inputs}
        for k in node.outputs:
            key = facts.variables[k] if k else None
            source = graph.variables[aliased[key]] if key in aliased else None
            if source is not None and source.producer is not None:
                groups.append([source.producer, node.name])
    groups += list(users.values())
    groups += strays(graph)
    return _merged(graph, groups)


def strays(graph: Graph) -> list[list[str]]:
    """Nodes joined to no other (a counter in a buffer) stay with the rest of their module."""
    home: dict[str, str] = {}
    strays = []
    for node in graph:
        if not graph.predecessors[node.name] and not graph.successors[node.name] and not node.inputs:
            strays.append(node)
        elif node.initializers:
            home.setdefault(node.module, node.name)
    return [[node.name, home[node.module]] for node in strays if node.module in home]


def _merged(graph: Graph, groups: Iterable[Sequence[str]]) -> Sets:
    """Overlapping sets joined; sets of one dropped; members and sets in graph order."""
    return tuple(together for together in joined(graph, groups) if len(together) > 1)


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The order in which a copy of such a tensor has its dimensions in memory; () for their own order."""
    if 0 in strides:  # torch has rules of its own for what is repeated
        strides = torch.empty_like(torch.empty_strided(shape, strides, device="meta")).stride()
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], -shape[d]))
    return tuple(order) if order != sorted(order) else ()


def repeated_dims(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The dimensions along which all is the same memory."""
    return tuple(d for d, size in enumerate(shape) if size > 1 and not strides[d])


def is_spread(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether memory between its elements is not its own, or elements share some."""
    step = 1
    for size, stride in sorted(zip(shape, strides, strict=True), key=lambda each: (each[1], each[0])):
        if size > 1:
            if stride != step:
                return True
            step *= size
    return False


@dataclass(frozen=True)
class Strides:
    """How a tensor lies in memory, whatever its sizes; fields as of `Variable`."""

    order: tuple[int, ...]
    repeated: tuple[int, ...]
    spread: bool

    @classmethod
    def of(cls, tensor: Tensor) -> Strides:
        lies = tensor.shape, tensor.stride()
        return cls(memory_order(*lies), repeated_dims(*lies), is_spread(*lies))

    def laid_out(self, tensor: Tensor) -> Tensor:
        """The tensor where it lies so, else a copy that does."""
        if Strides.of(tensor) == self:
            return tensor
        moved, order = tensor, self.order or tuple(range(tensor.dim()))
        for d in self.repeated:
            moved = moved.narrow(d, 0, 1)
        moved = moved.permute(order).contiguous()
        if self.spread:
            moved = moved.new_empty((*moved.shape, 2)).select(-1, 0).copy_(moved)
        return moved.permute([order.index(d) for d in range(tensor.dim())]).expand(tensor.shape)


def copy_as_it_lies(tensor: Tensor) -> Tensor:
    """A copy with the same strides, where a tensor is cut out of another or repeats itself too."""
    reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.detach().as_strided((reach if tensor.numel() else 0,), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride(), 0)
