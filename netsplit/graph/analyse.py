"""What a graph's operators do to memory, found by running them on tensors without data.

Every operator runs once under ``FakeTensorMode`` with autograd on. That shows which variables carry
a gradient, which tensors each backward keeps alive, which variables share storage and which
storage is written in place: all that placement must respect (DESIGN.md, invariants 3 and 4).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from netsplit.errors import ConfigError
from netsplit.graph.autocast import autocast_of
from netsplit.graph.ir import INITIALIZER, Graph, Initializer, Node
from netsplit.graph.operators import call_node, resolve

__all__ = ["analyse", "written_references"]


def analyse(graph: Graph, batch: tuple[torch.Tensor, ...], device_type: str = "cpu") -> Graph:
    """`graph` with dtypes under autocast, gradients, saved tensors, in-place units and colocated sets.

    Raises:
        ConfigError: the graph asks for autocast on a kind of device that this process cannot use.
    """
    if device_type != "cpu" and not getattr(torch, device_type).is_available():
        raise ConfigError(f"autocast as {device_type} devices do it cannot be found out without one here.")
    run = _FakeRun(graph, batch, device_type)
    with autocast_of(graph, device_type):
        nodes = {node.name: run.node(node) for node in graph}
    owner = {storage_id(tensor): INITIALIZER + name for name, tensor in run.initializers.items()}
    variables = {}
    for k, variable in graph.variables.items():
        first = owner.setdefault(storage_id(run.tensors[k]), k)
        alias = None if first == k else first
        variables[k] = replace(
            variable,
            dtype=str(run.tensors[k].dtype).removeprefix("torch."),
            requires_grad=run.tensors[k].requires_grad,
            alias_of=alias,
        )
    units = _in_place_units(graph, run)
    return replace(
        graph,
        nodes=nodes,
        variables=variables,
        units=units,
        colocated=_colocated(graph, run, units),
        batch_size=batch[0].shape[0] if batch and batch[0].dim() else 1,
    )


class _FakeRun:
    def __init__(self, graph: Graph, batch: tuple[torch.Tensor, ...], device_type: str) -> None:
        self.device_type = device_type
        self.mode = FakeTensorMode()
        self.tensors: dict[str, torch.Tensor] = {}  # of variables
        self.initializers: dict[str, torch.Tensor] = {}
        self.written: dict[int, list[str]] = {}  # storage -> nodes that write it in place
        with self.mode:
            for name, init in graph.initializers.items():
                self.initializers[name] = _empty(init, device_type)
            for name, example in zip(graph.input_variables, batch, strict=True):
                self.tensors[name] = torch.empty(example.shape, dtype=example.dtype, device=device_type)
        # Held so that no storage id is used twice.
        self.keep: list[Any] = []

    def node(self, node: Node) -> Node:
        saved: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tensor)
            return tensor

        with self.mode, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            result = call_node(node, self._tensor, device=self.device_type)
        outputs = (result,) if isinstance(result, torch.Tensor) else tuple(result or ())
        self.keep += [*outputs, *saved]
        for name, tensor in zip(node.outputs, outputs, strict=False):
            if name:
                self.tensors[name] = tensor
        for reference in written_references(node):
            self.written.setdefault(storage_id(self._tensor(*reference)), []).append(node.name)
        return self._with_saved(node, saved)

    def _tensor(self, tag: str, name: str) -> torch.Tensor:
        return self.tensors[name] if tag == "var" else self.initializers[name]

    def _with_saved(self, node: Node, saved: list[torch.Tensor]) -> Node:
        local = {storage_id(self.tensors[k]): k for k in (*node.inputs, *(k for k in node.outputs if k))}
        parameters = {storage_id(tensor) for tensor in self.initializers.values()}
        names: dict[str, None] = {}
        other: dict[int, int] = {}
        for tensor in saved:
            key = storage_id(tensor)
            if key in local:
                names[local[key]] = None
            elif key not in parameters:
                other[key] = tensor.untyped_storage().nbytes()
        return replace(node, saved=tuple(names), saved_bytes=sum(other.values()))


def storage_id(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _empty(init: Initializer, device_type: str) -> torch.Tensor:
    tensor = torch.empty(init.shape, dtype=getattr(torch, init.dtype), device=device_type)
    return tensor.requires_grad_(init.requires_grad)


def written_references(node: Node) -> list[tuple[str, str]]:
    """("var" | "init", name) of every tensor argument that the operator writes.

    Schemas say so, but for the running statistics of normalisations, which go by their names.
    """
    schema = resolve(node.op)._schema
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
    learns = any(given.get(flag) is True for flag in ("training", "train", "use_input_stats"))
    found = []
    for argument in schema.arguments:
        template = given.get(argument.name)
        written = argument.alias_info is not None and argument.alias_info.is_write
        written = written or (learns and argument.name in ("running_mean", "running_var"))
        if written and isinstance(template, dict):
            found += list(template.items())
    return found


def _touching(graph: Graph, run: _FakeRun) -> dict[int, list[str]]:
    """Storage -> the nodes that make or read a variable or initializer in it, in order."""
    found: dict[int, dict[str, None]] = {}
    for node in graph:
        names = (*node.inputs, *(k for k in node.outputs if k))
        tensors = [run.tensors[k] for k in names] + [run.initializers[k] for k in node.initializers]
        for tensor in tensors:
            found.setdefault(storage_id(tensor), {})[node.name] = None
    return {key: list(nodes) for key, nodes in found.items()}


def _in_place_units(graph: Graph, run: _FakeRun) -> tuple[tuple[str, ...], ...]:
    """Per written storage: all who touch it, but for those who can only see it after the last write."""
    groups = []
    touching = _touching(graph, run)
    owned = {storage_id(tensor) for tensor in run.initializers.values()}
    for key, writers in run.written.items():
        last = max(graph.position[name] for name in writers)
        members = [
            name
            for name in touching[key]
            if graph.position[name] <= last or key in owned or _reads_older(graph, run, name, key, last)
        ]
        groups.append(_convex_closure(graph, members))
    return _merged(graph, groups)


def _reads_older(graph: Graph, run: _FakeRun, name: str, key: int, last: int) -> bool:
    """Whether a node reads the storage under a name it had before its last write."""
    for k in graph.nodes[name].inputs:
        if storage_id(run.tensors[k]) == key:
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


def _colocated(
    graph: Graph, run: _FakeRun, units: tuple[tuple[str, ...], ...]
) -> tuple[tuple[str, ...], ...]:
    groups: list[list[str]] = [list(unit) for unit in units]
    users: dict[str, list[str]] = {}
    for node in graph:
        for name in node.initializers:
            users.setdefault(name, []).append(node.name)
        aliased = {storage_id(run.tensors[k]): k for k in node.inputs}
        for k in node.outputs:
            source = graph.variables[aliased[key]] if k and (key := _key(run, k)) in aliased else None
            if source is not None and source.producer is not None:
                groups.append([source.producer, node.name])
    groups += list(users.values())
    groups += _strays(graph)
    return _merged(graph, groups)


def _key(run: _FakeRun, variable: str) -> int:
    return storage_id(run.tensors[variable])


def _strays(graph: Graph) -> list[list[str]]:
    """Nodes joined to no other (a counter in a buffer) stay with the rest of their module."""
    home: dict[str, str] = {}
    strays = []
    for node in graph:
        if not graph.predecessors[node.name] and not graph.successors[node.name] and not node.inputs:
            strays.append(node)
        elif node.initializers:
            home.setdefault(node.module, node.name)
    return [[node.name, home[node.module]] for node in strays if node.module in home]


def _merged(graph: Graph, groups: list[list[str]]) -> tuple[tuple[str, ...], ...]:
    """Overlapping sets joined; sets of one dropped; members and sets in graph order."""
    root = {name: name for name in graph.nodes}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for group in groups:
        for name in group[1:]:
            root[find(name)] = find(group[0])
    sets: dict[str, list[str]] = {}
    for name in graph.nodes:
        sets.setdefault(find(name), []).append(name)
    return tuple(tuple(members) for members in sets.values() if len(members) > 1)
