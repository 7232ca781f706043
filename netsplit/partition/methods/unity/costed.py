"""The choices of every operator with their seconds, and what moving costs between those of two.

operator ──► choices with seconds [C]        tensor ──► its hand-over, where several read it
tensor between two ──► seconds of moving [C, C]
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from math import inf
from operator import mul
from typing import Any, TypeAlias

import numpy as np

from netsplit.compiled import Floats
from netsplit.errors import RewriteError, TimeLimitError
from netsplit.graph.arguments import read_by
from netsplit.graph.ir import CALL, Graph, Node, dtype_bytes
from netsplit.graph.quotient import units_of
from netsplit.layout import Layout
from netsplit.partition.methods.unity.choices import (
    Dimension,
    Machines,
    MachineView,
    TaskAxis,
    TaskChoice,
    TaskKind,
    choices_on,
    task_axes,
)
from netsplit.partition.methods.unity.movement import Movement, distinct_layouts, key_of
from netsplit.partition.methods.unity.task_seconds import PartCost, TaskSeconds
from netsplit.profile.costs import Costs
from netsplit.profile.operator_keys import operator_key
from netsplit.rewrite.following import ways_of_graph
from netsplit.rewrite.in_place import out_of_place
from netsplit.rewrite.leaves import require_copies
from netsplit.rewrite.ways import Place

__all__ = ["Costed", "TensorLink", "Vertex"]

Devices: TypeAlias = tuple[int, ...]

HANDED = "hand over "
"""What the vertex of a tensor that several read is called by."""


@dataclass(frozen=True, eq=False)
class Vertex:
    """Operators that run in one piece, or a tensor on its way to several readers. `key`: what it is like."""

    name: str
    nodes: tuple[str, ...]
    key: str
    tensor: str = ""


@dataclass(frozen=True, eq=False)
class TensorLink:
    """Tensors from one vertex to another, whose numbers are `source` and `target`; or a weight that operators
    of both read, which has to lie alike for them: `readers`, one of each."""

    source: int
    target: int
    tensors: tuple[str, ...]
    key: str
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Options:
    """The choices of one vertex on some devices. `seconds` have the price of its bytes in them."""

    choices: tuple[TaskChoice, ...]
    seconds: Floats
    layouts: tuple[Layout, ...] = ()  # of a hand-over


@dataclass(eq=False)
class Known:
    """What was computed, by what it depends on but names. `tables`: of the programme."""

    numbers: dict[str, str] = field(default_factory=dict)
    options: dict[tuple[str, Devices], Options] = field(default_factory=dict)
    moves: dict[object, Floats] = field(default_factory=dict)
    tables: dict[object, tuple[Floats, Any]] = field(default_factory=dict)
    movement: Movement | None = None
    keys: dict[object, tuple[object, str]] = field(default_factory=dict)


@dataclass(eq=False)
class Costed:
    """What all choices for one captured graph take."""

    graph: Graph
    costs: Costs
    machines: Machines
    dimensions: tuple[Dimension, ...]
    microbatches: int = 1  # that one step has; sums and steps come once
    spread_s: float = 0.0  # seconds for all of the capacity of the device that an operator fills most
    price: tuple[float, ...] = ()  # seconds for a byte on each device
    refused: frozenset[tuple[str, int]] = frozenset()  # operators that cannot be lowered with so many axes
    tasks: Mapping[str, TaskKind] | None = None
    """Operator -> how it is cut, whole if it is not there; views are chosen alone. None: both are."""
    known: Known = field(default_factory=lambda: Known())  # kept for other graphs made of the captured one
    stages: Mapping[str, Devices] = field(default_factory=dict)  # operator -> devices that it may be on; all
    ends: Callable[[], float] = lambda: inf  # when a mapping is left, on ``time.perf_counter``

    def __post_init__(self) -> None:
        self.graph = graph = out_of_place(self.graph)
        self.keys = {node.name: self._operator_key(node) for node in graph}
        self.seconds = TaskSeconds(graph, self.costs, self.keys)
        weights = {k for k, each in graph.initializers.items() if each.requires_grad}
        self.trained = max(sum(not weights.isdisjoint(node.initializers) for node in graph), 1)
        self.movement = self.known.movement = self.known.movement or Movement(self.machines, self.costs)
        self.calls, _ = ways_of_graph(graph)
        self._layouts: dict[object, tuple[Layout, ...]] = {}
        self.vertices, self.links = self._drawn()

    def _operator_key(self, node: Node) -> str:
        """Kept for graphs of which only other operators are new."""
        graph = self.graph
        own = [node, *map(graph.variables.get, node.inputs), *map(graph.initializers.get, node.initializers)]
        key = *map(id, own), *(k in graph.requires_backward for k in node.outputs)
        if key not in self.known.keys:
            self.known.keys[key] = own, operator_key(graph, node)
        return self.known.keys[key][1]

    def _drawn(self) -> tuple[list[Vertex], list[TensorLink]]:
        graph = self.graph
        vertices, number = list[Vertex](), dict[str, int]()
        for unit in units_of(graph):
            key = self.number(" ".join(self._key(graph.nodes[name]) for name in unit))
            for name in unit:
                number[name] = len(vertices)
            vertices.append(Vertex(unit[0], unit, key))
        between: dict[tuple[int, int], list[str]] = {}
        for k, variable in graph.variables.items():
            if variable.producer is None:
                continue
            source = number[variable.producer]
            targets = list(dict.fromkeys(number[v] for v in variable.consumers if number[v] != source))
            if len(targets) > 1:
                own = len(vertices)
                told = (f"{vertices[t].key}{self._told(k, vertices[source], vertices[t])}" for t in targets)
                readers = "|".join(told)
                key = self.number(f"{HANDED}{variable.shape}{variable.dtype}{vertices[source].key}>{readers}")
                vertices.append(Vertex(f"{HANDED}{k}", (), key, k))
                between.setdefault((source, own), []).append(k)
                source = own
            for target in targets:
                between.setdefault((source, target), []).append(k)
        links = []
        for (source, target), tensors in between.items():
            ends = vertices[source], vertices[target]
            said = ";".join(self._told(k, *ends) for k in tensors)
            key = self.number(f"{ends[0].key}-{said}-{ends[1].key}")
            links.append(TensorLink(source, target, tuple(tensors), key))
        reading: dict[str, dict[int, str]] = {k: {} for k in graph.initializers}
        for node in graph:
            for k in node.initializers:
                reading[k][number[node.name]] = node.name
        for k, by in reading.items():
            for (a, one), (b, other) in pairwise(by.items()):
                read = [sorted(map(str, self._places(name).get(k, ()))) for name in (one, other)]
                said = f"tied {graph.initializers[k].shape}{vertices[a].key}{read}{vertices[b].key}"
                links.append(TensorLink(a, b, (k,), self.number(said), (one, other)))
        return vertices, links

    def _key(self, node: Node) -> str:
        every = task_axes(self.graph, node.name, self.dimensions)
        axes = [(a.axis, a.blocks, a.step, a.dimension) for a in every]
        refused = [n for name, n in self.refused if name == node.name]
        own = "" if _says_what_it_reads(node) else node.name
        given = [(k, len(self.graph.variables[k].consumers)) for k in self._given(node)]
        tasks = None if self.tasks is None else self.tasks.get(node.name, ())
        stage = self.stages.get(node.name, "")
        return f"{own}{self.keys[node.name]}{axes}{refused or ''}{given or ''}{tasks}{stage}"

    def _told(self, k: str, source: Vertex, target: Vertex) -> str:
        """What moving a tensor depends on beside the two vertices."""
        variable, nodes = self.graph.variables[k], self.graph.nodes
        outputs = [(i, nodes[v].outputs) for i, v in enumerate(source.nodes)]
        made = [(i, own.index(k)) for i, own in outputs if k in own]
        read = [(i, self._read_at(v, k)) for i, v in enumerate(target.nodes) if k in nodes[v].inputs]
        return f"{variable.shape}{variable.dtype}{k in self.graph.requires_backward}{made}{read}"

    def _read_at(self, node: str, k: str) -> list[Place]:
        call = self.calls[node]
        if call.node.op.startswith(CALL):
            return []
        return [place for place in call.tensors if call.reference(place) == ("var", k)]

    def number(self, text: str) -> str:
        """A short name for a key."""
        return self.known.numbers.setdefault(text, f"{len(self.known.numbers)}")

    def options(self, v: int, devices: Devices) -> Options:
        """The choices of a vertex on some of the devices; at least one.

        Raises:
            TimeLimitError: it is later than `ends`.
        """
        if time.perf_counter() > self.ends():
            raise TimeLimitError("the mapping ran out of time.")
        vertex = self.vertices[v]
        key = vertex.key, devices
        known = self.known.options
        if key not in known:
            known[key] = self._handed(v, devices) if vertex.tensor else self._costed(vertex, devices)
        return known[key]

    def _handed(self, v: int, devices: Devices) -> Options:
        """The layouts in which readers want it, and in which it is made."""
        layouts: dict[object, tuple[Layout, TaskChoice]] = {}
        for link in self.links:
            if v not in (link.source, link.target):
                continue
            other = link.source if link.target == v else link.target
            own = self.options(other, devices)
            for choice, layout in zip(own.choices, self._at(link, other, own), strict=True):
                if not layout.partial:
                    layouts.setdefault(key_of(layout), (layout, choice))
        choices = tuple(choice for _, choice in layouts.values())
        return Options(choices, np.zeros(len(choices)), tuple(layout for layout, _ in layouts.values()))

    def _costed(self, vertex: Vertex, devices: Devices) -> Options:
        made, seconds = [], []
        for choice in self._choices(vertex, devices):
            with suppress(RewriteError):
                seconds.append(sum(self._seconds(name, choice) for name in vertex.nodes))
                made.append(choice)
        if not made:  # not so on these
            return Options((TaskChoice(MachineView(devices[:1])),), np.array([np.inf]))
        return Options(tuple(made), np.array(seconds))

    def _choices(self, vertex: Vertex, devices: Devices) -> list[TaskChoice]:
        name, axes, copies = vertex.nodes[0], tuple[TaskAxis, ...](), False
        node, weights = self.graph.nodes[name], self._places(name)
        if len(vertex.nodes) == 1 and _says_what_it_reads(node):
            axes, copies = task_axes(self.graph, name, self.dimensions), self._has_copies(node)
            if weights and not copies:
                axes = tuple(a for a in axes if all(there & a.way.cut.keys() for there in weights.values()))
        copies = copies and "copies" in self.dimensions
        devices = tuple(p for p in devices if p in self.stages.get(name, devices))
        return [
            choice
            for view in self.machines.views(devices, anywhere=any(self.price))
            if (name, len(view.shape)) not in self.refused
            for choice in choices_on(view, axes, copies, weights, self.machines)
            if self.tasks is None or choice.kind == self.tasks.get(name, ())
        ]

    def _has_copies(self, node: Node) -> bool:
        try:
            require_copies(self.graph, node)
        except RewriteError:
            return False
        return True

    def _places(self, name: str) -> dict[str, frozenset[Place]]:
        """Initializer -> where an operator is given it."""
        made, call = dict[str, frozenset[Place]](), self.calls[name]
        for place in call.tensors:
            tag, k = call.reference(place)
            if tag == "init":
                made[k] = made.get(k, frozenset()) | {place}
        return made

    def _weight_layout(self, choice: TaskChoice, name: str, k: str) -> object:
        """A weight's layout, with its devices; two operators that read one weight have it alike."""
        place = next(iter(self._places(name).get(k, ())), None) if choice.axes else None
        if place is None:
            return choice.view.devices
        return key_of(choice.reads(place, len(self.graph.initializers[k].shape)))

    def _seconds(self, name: str, choice: TaskChoice) -> float:
        """Computing on the slowest device, summing gradients, stepping, and the price of its bytes."""
        cluster = self.machines.cluster
        parts, numbers = self._parts(name, choice)
        devices = list(zip(numbers, choice.view.devices, strict=True))
        unlike = {(i, self.machines.classes[p]): (parts[i], cluster.devices[p]) for i, p in devices}.values()
        names = self.graph.nodes[name].initializers
        trained = [i for i, k in enumerate(names) if self.graph.initializers[k].requires_grad]
        stepped = [sum(part.weights[i] for i in trained) for part in parts]
        slowest = max(part.seconds[p.kind] for part, p in unlike)
        total = self.microbatches * (slowest + self._ends(name, choice))
        total += max(stepped[parts.index(part)] * self.costs.of(p.kind).step_s_per_byte for part, p in unlike)
        total += self._sums(name, choice, parts[numbers[0]], trained)
        if self.spread_s:
            times = [self.costs.device_alpha if i in trained else 1 for i in range(len(names))]
            held = [each.kept_bytes + sum(map(mul, times, each.weights)) for each in parts]
            total += self.spread_s * max(held[i] / cluster.devices[p].capacity_bytes for i, p in devices)
            total += sum(self.price[p] * held[i] for i, p in devices)
        return total

    def _ends(self, name: str, choice: TaskChoice) -> float:
        """Bringing a batch from the first device, and adding up there what nobody reads, as a loss."""
        if not choice.axes:
            return 0.0
        node, first, seconds = self.graph.nodes[name], TaskChoice(MachineView(choice.view.devices[:1])), 0.0
        for k in self._given(node):
            own, rank = self.graph.variables[k], len(self.graph.variables[k].shape)
            for place in self._read_at(name, k)[:1]:
                brought = self._moving(k, [first.layout(rank)], [choice.reads(place, rank)], back=False)
                seconds += brought.item() / len(own.consumers)
        for j, k in enumerate(node.outputs):
            if k and not (own := self.graph.variables[k]).consumers:
                ends = [choice.makes(j, len(own.shape))], [first.layout(len(own.shape))]
                seconds += self._moving(k, *ends, back=k in self.graph.requires_backward).item()
        return seconds

    def _given(self, node: Node) -> list[str]:
        """Inputs that are a batch's."""
        return [k for k in node.inputs if self.graph.variables[k].producer is None]

    def _parts(self, name: str, choice: TaskChoice) -> tuple[list[PartCost], list[int]]:
        """Costs of unlike parts, and which of them each device has."""
        sizes = [[0] if own is None else list(dict.fromkeys(own[1])) for own in choice.axes]
        every = [
            tuple((own[0], n) for own, n in zip(choice.axes, each, strict=True) if own is not None)
            for each in product(*sizes)
        ]
        numbers = [0]
        for m, (own, n) in enumerate(zip(choice.axes, choice.view.shape, strict=True)):
            along = [0] * n if own is None else [sizes[m].index(size) for size in own[1]]
            numbers = [i * len(sizes[m]) + j for i in numbers for j in along]
        return self.seconds.of(name, every), numbers

    def _sums(self, name: str, choice: TaskChoice, part: PartCost, trained: Sequence[int]) -> float:
        """Rings over devices that have one region, queued at NICs; with part of the latency of all sums."""
        if not choice.axes or not trained:
            return 0.0
        nbytes_alike, places = Counter[tuple[int, ...]](), self._places(name)
        for i in trained:
            there = places.get(self.graph.nodes[name].initializers[i], frozenset())
            own = [a is None or there.isdisjoint((*a[0].way.cut, *a[0].way.once)) for a in choice.axes]
            nbytes_alike[tuple(m for m, is_alike in enumerate(own) if is_alike)] += part.weights[i]
        devices, seconds = np.array(choice.view.devices).reshape(choice.view.shape), 0.0
        for alike, nbytes in nbytes_alike.items():
            index = tuple(slice(None) if m in alike else 0 for m in range(devices.ndim))
            ring = tuple(np.atleast_1d(devices[index]).ravel().tolist())
            seconds += self.movement.ring_seconds(ring, nbytes, devices.size // len(ring), self.trained)
        return seconds

    def moving(self, link: TensorLink, sources: Devices, targets: Devices) -> Floats:
        """[choices of the source on those devices, choices of the target on those] seconds."""
        a, b = self.options(link.source, sources), self.options(link.target, targets)
        key = link.key, sources, targets
        if key not in self.known.moves and link.readers:
            one, other = (
                [self._weight_layout(choice, name, *link.tensors) for choice in own.choices]
                for name, own in zip(link.readers, (a, b), strict=True)
            )
            self.known.moves[key] = np.array([[0.0 if x == y else np.inf for y in other] for x in one])
        elif key not in self.known.moves:
            total = np.zeros((len(a.choices), len(b.choices)))
            for k in link.tensors:
                own = replace(link, tensors=(k,))
                ends = self._at(own, link.source, a), self._at(own, link.target, b)
                back = k in self.graph.requires_backward
                total += self.microbatches * self._moving(k, *ends, back) + self._copies_s(k, *ends)
            self.known.moves[key] = total
        return self.known.moves[key]

    def _moving(self, k: str, made: Sequence[Layout], read: Sequence[Layout], back: bool) -> Floats:
        variable = self.graph.variables[k]
        rows, of_row = distinct_layouts(made)
        columns, of_column = distinct_layouts(read)
        each = self.movement.seconds(rows, columns, variable.shape, dtype_bytes(variable.dtype), back)
        made_s: Floats = each[np.ix_(of_row, of_column)]
        return made_s

    def _copies_s(self, k: str, made: Sequence[Layout], read: Sequence[Layout]) -> Floats | float:
        """The price of the bytes that readers get."""
        if not self.spread_s:
            return 0.0
        shape, size = self.graph.variables[k].shape, dtype_bytes(self.graph.variables[k].dtype)
        room = np.array([each.capacity_bytes for each in self.machines.cluster.devices])
        held = self.movement.copies(made, read, shape, size)
        total: Floats = self.spread_s * (held / room).max(axis=2) + held @ np.array(self.price)
        return total

    def _at(self, link: TensorLink, v: int, options: Options) -> tuple[Layout, ...]:
        """How a vertex makes or reads the first of the link's tensors, for every choice."""
        if options.layouts:
            return options.layouts
        (k, *_), vertex = link.tensors, self.vertices[v]
        made = v == link.source
        key = k, made, id(options)
        if key in self._layouts:
            return self._layouts[key]
        rank = len(self.graph.variables[k].shape)
        nodes = [self.graph.nodes[name] for name in vertex.nodes]
        node = next(n for n in nodes if k in (n.outputs if made else n.inputs))
        layouts = []
        for choice in options.choices:
            if not choice.axes:
                layouts.append(choice.layout(rank))
            elif made:
                layouts.append(choice.makes(node.outputs.index(k), rank))
            else:
                layouts.append(choice.reads(self._read_at(node.name, k)[0], rank))
        self._layouts[key] = tuple(layouts)
        return self._layouts[key]


def _says_what_it_reads(node: Node) -> bool:
    """Not Python code, nor a node of a file without arguments."""
    return not node.op.startswith(CALL) and {*node.inputs, *node.initializers} == {
        k for _, k in read_by(node)
    }
