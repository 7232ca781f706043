"""How an operator may be computed, and on which devices: its tasks, and a view of the machines.

    axes that can be cut, views of the devices ──► TaskChoice: along each axis of a mesh an axis, or copies

Devices of one class are alike, so a view is how many of each class it takes. Pieces are as large as devices
are fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Literal, TypeAlias

import numpy as np

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import CALL, Graph, once_of
from netsplit.layout import Layout, Mesh
from netsplit.partition.base import Problem
from netsplit.partition.common.homes import devices_of_nodes, linked_groups
from netsplit.rewrite import OperatorTasks, TaskCut, columns_and_rows
from netsplit.rewrite.following import ways_of_graph
from netsplit.rewrite.pcg import SUM, LiesAlong, layout_of_cuts
from netsplit.rewrite.records import proportioned
from netsplit.rewrite.samples import samples_axes
from netsplit.rewrite.ways import Axis, Cat, PartialSum, Place, SplitCall, Way

__all__ = [
    "DIMENSIONS", "Dimension", "FewViews", "MachineView", "Machines", "TaskAxis", "TaskChoice", "TaskKind",
    "choices_on", "devices_of", "hosts", "task_axes", "tasks_of_mapping",
]  # fmt: skip

TaskKind: TypeAlias = tuple[tuple[Axis | None, int, int], ...]
"""Tasks without devices: for each axis of the mesh, the axis cut, its blocks (0 for copies), and how many."""

Dimension = Literal["samples", "columns", "reduction", "heads", "copies"]
DIMENSIONS: tuple[Dimension, ...] = ("samples", "columns", "reduction", "heads", "copies")

MANY = 48  # devices, of which no part of a host is a view, and only quarters of quarters of the hosts
FEW = 8  # devices, of which every number is a view; of more, the divisors of hosts and whole hosts


@dataclass(frozen=True)
class MachineView:
    """Devices by their numbers in the cluster, row-major on a mesh; () is the mesh of one device."""

    devices: tuple[int, ...]
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Machines:
    """The devices of a cluster, of which alike ones are a class."""

    cluster: Cluster
    speed: tuple[float, ...]  # of each device, beside the slowest
    hosts: tuple[int, ...]  # the number of each device's host; all of one where links are much alike
    classes: tuple[int, ...]  # the number of each device's class

    @classmethod
    def of(cls, problem: Problem) -> Machines:
        """Devices are alike where kind, capacity and speed are, whatever their hosts. Speed is how often one
        does all operators in the time that the slowest takes."""
        cluster, costs = (problem.simulator or problem).cluster, problem.costs
        seconds = [sum(costs.total_s(v, p.kind) for v in problem.graph.nodes) for p in cluster.devices]
        speed = tuple(max(seconds) / own if own > 0 else 1.0 for own in seconds)
        kinds = [(p.kind, p.capacity_bytes, own) for p, own in zip(cluster.devices, speed, strict=True)]
        numbers = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
        return cls(cluster, speed, hosts(cluster), tuple(numbers[kind] for kind in kinds))

    @property
    def places(self) -> list[tuple[int, ...]]:
        """The host of each device, where there are several, and its number there."""
        several = len(set(self.hosts)) > 1
        numbers = [self.hosts[:p].count(host) for p, host in enumerate(self.hosts)]
        return [(host, n) if several else (n,) for host, n in zip(self.hosts, numbers, strict=True)]

    def groups(self, devices: Sequence[int], anywhere: bool = False) -> list[tuple[int, ...]]:
        """Sets of these devices that operators may be on: of each class the first ones, in the order of the
        devices; `anywhere`: runs that begin elsewhere, too."""
        own: dict[int, list[int]] = {}
        for p in devices:
            own.setdefault(self.classes[p], []).append(p)
        made: list[tuple[int, ...]] = []
        for counts in product(*([0, *self._numbers(each)] for each in own.values())):
            chosen = [each[:n] for each, n in zip(own.values(), counts, strict=True)]
            many = len(own) > 1 and len(devices) > FEW  # of these, some of one class, or all of some classes
            if not many or sum(map(bool, chosen)) == 1 or all(each in ([], *own.values()) for each in chosen):
                made.append(tuple(sorted(p for each in chosen for p in each)))
        if anywhere:
            for n in {len(each) for each in made if each}:
                made += [tuple(devices[i : i + n]) for i in range(n, len(devices) - n + 1, n)]
        return [each for each in dict.fromkeys(made) if each]

    def _numbers(self, devices: Sequence[int]) -> list[int]:
        """How many of alike devices a view may take."""
        n = len(devices)
        if n <= FEW:
            return list(range(1, n + 1))
        host = sum(self.hosts[p] == self.hosts[devices[0]] for p in devices)
        hosts = -(-n // host)
        if n <= MANY:
            inside = [k for k in range(1, host + 1) if host % k == 0]
            return sorted({*inside, *(host * k for k in range(1, hosts + 1) if hosts % k == 0), n})
        return sorted({1, host, n, *(host * hosts // k for k in (4, 16) if hosts % k == 0)})

    def views(self, devices: Sequence[int], anywhere: bool = False) -> list[MachineView]:
        """On meshes of one axis, and of two: hosts and their devices, or factors of one host's devices."""
        made = []
        for group in self.groups(devices, anywhere):
            n = len(group)
            made.append(MachineView(group, (n,) if n > 1 else ()))
            made += [MachineView(group, (n // k, k)) for k in (self._inner(group) if n > 1 else ())]
        return made

    def _inner(self, group: Sequence[int]) -> list[int]:
        """Sizes of the inner axis of a mesh."""
        there = [sum(self.hosts[p] == h for p in group) for h in {self.hosts[p] for p in group}]
        if len(there) > 1:
            return [there[0]] if len(set(there)) == 1 and there[0] > 1 else []
        return [k for k in range(2, len(group) // 2 + 1) if len(group) % k == 0]


def hosts(cluster: Cluster) -> tuple[int, ...]:
    """The number of the host of each device's NIC, else of the group whose links are much faster."""
    nics = [cluster.nic(name) for name in cluster.names]
    named = [nic.host for nic in nics if nic is not None]
    if len(named) < len(nics):
        group_of = {name: str(i) for i, group in enumerate(linked_groups(cluster)) for name in group}
        named = [group_of[name] for name in cluster.names]
    return tuple([*dict.fromkeys(named)].index(host) for host in named)


@dataclass(frozen=True, eq=False)
class FewViews(Machines):
    """Views of one device, those of a host, those of a kind, or all: a tenth of the choices of 16 devices."""

    def groups(self, devices: Sequence[int], anywhere: bool = False) -> list[tuple[int, ...]]:
        own: dict[object, list[int]] = {}
        for p in devices:
            own.setdefault(("host", self.hosts[p]), []).append(p)
            own.setdefault(("class", self.classes[p]), []).append(p)
        alone = devices if anywhere else [each[0] for each in own.values()]
        several = [tuple(each) for each in own.values()]
        return [each for each in dict.fromkeys([*((p,) for p in alone), *several, tuple(devices)]) if each]

    def _inner(self, group: Sequence[int]) -> list[int]:
        return super()._inner(group) if len({self.hosts[p] for p in group}) > 1 else []


@dataclass(frozen=True, eq=False)
class TaskAxis:
    """An axis along which an operator is cut: in how many blocks, in steps of how many elements."""

    axis: Axis
    way: Way
    dimension: Dimension
    blocks: int = 1
    step: int = 1

    def sizes(self, speeds: Sequence[float]) -> tuple[int, ...]:
        """Sizes of its pieces; () where there are too few steps."""
        steps = self.way.size // self.blocks // self.step
        return tuple(n * self.step for n in proportioned(steps, speeds))


@dataclass(frozen=True, eq=False)
class TaskChoice:
    """What an operator is cut along, for each axis of the mesh; None where it is computed alike."""

    view: MachineView
    axes: tuple[tuple[TaskAxis, tuple[int, ...]] | None, ...] = ()  # with the sizes of the pieces
    weights_cut: tuple[bool, ...] = ()  # axis of the mesh -> whether every weight is cut along it

    @property
    def kind(self) -> TaskKind:
        every = zip(self.axes, self.view.shape, strict=True)
        return tuple((None, 0, n) if a is None else (a[0].axis, a[0].blocks, n) for a, n in every)

    def layout(self, rank: int, where: Sequence[LiesAlong] = ()) -> Layout:
        """The layout of a tensor that lies so along each axis; whole, if nothing is given."""
        mesh = Mesh(self.view.devices, self.view.shape or (1,))
        cuts = [(m, own, *self._cut(m)) for m, own in enumerate(where)]
        return layout_of_cuts(mesh, rank, cuts)

    def _cut(self, m: int) -> tuple[tuple[int, ...], int]:
        chosen = self.axes[m]
        return ((), 1) if chosen is None else (chosen[1], chosen[0].blocks)

    def reads(self, place: Place, rank: int) -> Layout:
        return self.layout(rank, [None if a is None else a[0].way.cut.get(place) for a in self.axes])

    def makes(self, j: int, rank: int) -> Layout:
        joined = [None if own is None else own[0].way.joined[j] for own in self.axes]
        where = [how.where if isinstance(how, Cat) else SUM if how else None for how in joined]
        return self.layout(rank, where)

    def tasks(self, node: str, places: Sequence[tuple[int, ...]]) -> OperatorTasks:
        """The tasks; `places` are those of every device of the cluster."""
        shape, every = self.view.shape, range(len(self.axes))
        cut = [m for m in every if self.axes[m] is not None]
        alike = [m for m in every if self.axes[m] is None]
        cuts = tuple(TaskCut(own[0].axis, own[1], own[0].blocks) for own in self.axes if own is not None)
        copies = tuple(shape[m] for m in alike)
        uncut = [1 if self.weights_cut[m] else shape[m] for m in cut]  # parts there have copies of weights
        numbers = np.broadcast_to(np.arange(prod(uncut)).reshape(uncut), [shape[m] for m in cut])
        devices = np.array(self.view.devices).reshape(shape).transpose((*cut, *alike))
        where = tuple(places[p] for p in devices.ravel().tolist())
        weights = tuple((numbers * prod(copies)).ravel().tolist())
        return OperatorTasks(node, cuts, copies, weights, places=where)


@once_of
def task_axes(graph: Graph, name: str, dimensions: tuple[Dimension, ...]) -> tuple[TaskAxis, ...]:
    """What an operator can be cut along. Heads of a fused projection are blocks, as its readers have it."""
    calls, ways = ways_of_graph(graph)
    call, samples = calls[name], samples_axes(graph).get(name)
    told = _blocks_of(graph).get(name, {})
    made = []
    for axis, way in ways[name].items():
        kind = _dimension(call, axis, way, samples)
        is_read = any(graph.variables[k].consumers for k in call.node.outputs if k)
        if kind not in dimensions or (way.last is not None and is_read):
            continue
        step = way.size // graph.batch_size if kind == "samples" and not way.size % graph.batch_size else 1
        blocks, unit = told.get(axis, (1, step))
        made.append(TaskAxis(axis, way, kind, blocks, unit))
        if blocks > 1:
            made.append(TaskAxis(axis, way, kind))
    return tuple(made)


@once_of
def _blocks_of(graph: Graph) -> dict[str, dict[Axis, tuple[int, int]]]:
    made: dict[str, dict[Axis, tuple[int, int]]] = {}
    for chain in columns_and_rows(graph):
        for name, cut in chain.cuts.items() if chain.chained else ():
            made.setdefault(name, {})[cut.axis] = cut.blocks, int(cut.scale * chain.unit)
    return made


def _dimension(call: SplitCall, axis: Axis, way: Way, samples: Axis | None) -> Dimension:
    if axis == samples:
        return "samples"
    if axis == "groups" or ("attention" in call.node.kind and axis == 1):
        return "heads"
    return "reduction" if any(isinstance(how, PartialSum) for how in way.joined) else "columns"


def choices_on(
    view: MachineView,
    axes: Sequence[TaskAxis],
    copies: bool,
    weights: Mapping[str, frozenset[Place]],
    machines: Machines,
) -> Iterator[TaskChoice]:
    """All choices on one view; no more than one axis of the mesh has copies.

    Args:
        weights: initializer -> the places where the operator is given it.
    """
    if not view.shape:
        yield TaskChoice(view)
        return
    options: list[TaskAxis | None] = [*axes, *([None] if copies else [])]
    speeds = [_along(view, m, machines.speed) for m in range(len(view.shape))]
    for chosen in product(options, repeat=len(view.shape)):
        if len({a and a.axis for a in chosen}) < len(chosen):  # one axis twice, as one of the mesh may do it
            continue
        sized = [None if a is None else (a, a.sizes(speeds[m])) for m, a in enumerate(chosen)]
        if all(own is None or own[1] for own in sized):
            cut = tuple(
                a is not None and all(there & {*a.way.cut, *a.way.once} for there in weights.values())
                for a in chosen
            )
            yield TaskChoice(view, tuple(sized), cut)


def _along(view: MachineView, m: int, speed: Sequence[float]) -> tuple[float, ...]:
    """How fast the devices of each index along an axis of the mesh are."""
    own = np.array([speed[p] for p in view.devices]).reshape(view.shape)
    return tuple(own.sum(axis=tuple(axis for axis in range(own.ndim) if axis != m)).tolist())


def tasks_of_mapping(
    graph: Graph, choices: Mapping[str, TaskChoice], machines: Machines
) -> tuple[OperatorTasks, ...]:
    """Tasks in the graph's order; of operators on one device only those that read or make pieces."""
    places = machines.places
    cut = {name for name, choice in choices.items() if choice.axes}
    in_units = {name for unit in graph.units for name in unit}
    made = []
    for node in graph:
        choice = choices[node.name]
        near = {*graph.predecessors[node.name], *graph.successors[node.name]}
        fixed = node.op.startswith(CALL) or node.checkpoint or node.name in in_units
        if choice.axes:
            made.append(choice.tasks(node.name, places))
        elif near & cut and not fixed and not node.initializers:
            made.append(OperatorTasks(node.name, places=(places[choice.view.devices[0]],)))
    return tuple(made)


def devices_of(graph: Graph, choices: Mapping[str, TaskChoice], machines: Machines) -> dict[str, str]:
    """Node -> device of a lowered graph; what moves tensors and has no place is where it is read."""
    names = machines.cluster.names
    home = {name: names[choice.view.devices[0]] for name, choice in choices.items()}
    return devices_of_nodes(graph, names, home, machines.places)
