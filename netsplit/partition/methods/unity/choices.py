"""How an operator may be computed, and on which devices: its tasks, and a view of the machines.

    axes that can be cut ─┐
                          ├─► TaskChoice: an axis, or copies, along each axis of a mesh of devices
    views of the devices ─┘

Devices of one class are alike, so a view is how many of each class it takes. Pieces are as large as devices
are fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Literal, TypeAlias

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph, Node, once_of
from netsplit.layout import Layout, Mesh
from netsplit.rewrite import OperatorTasks, TaskCut, columns_and_rows
from netsplit.rewrite.following import ways_of_graph
from netsplit.rewrite.records import proportioned
from netsplit.rewrite.samples import samples_axes
from netsplit.rewrite.ways import Axis, Cat, PartialSum, Place, SplitCall, Way

__all__ = ["DIMENSIONS", "Dimension", "MachineView", "Machines", "TaskAxis", "TaskChoice", "task_axes"]

TaskKind: TypeAlias = tuple[tuple[Axis | None, int, int], ...]
"""Tasks without devices: of each axis of the mesh, the axis cut, its blocks, 0 for copies, and how many."""

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
    """The devices of a cluster, of which alike ones are a class.

    Args:
        speed: of every device, beside the slowest.
        hosts: of every device the number of its host; all of one where links are much alike.
        classes: of every device the number of its class.
    """

    cluster: Cluster
    speed: tuple[float, ...]
    hosts: tuple[int, ...]
    classes: tuple[int, ...]

    @classmethod
    def of(cls, cluster: Cluster, speed: Sequence[float], hosts: Sequence[int]) -> Machines:
        """Devices are alike where kind, capacity and speed are, whatever their hosts."""
        kinds = [
            (each.kind, each.capacity_bytes, own) for each, own in zip(cluster.devices, speed, strict=True)
        ]
        numbers = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
        return cls(cluster, tuple(speed), tuple(hosts), tuple(numbers[kind] for kind in kinds))

    @property
    def places(self) -> list[tuple[int, ...]]:
        """Of every device: its host, where there are several, and its number there."""
        count: dict[int, int] = {}
        made: list[tuple[int, ...]] = []
        for host in self.hosts:
            number = count[host] = count.get(host, -1) + 1
            made.append((host, number) if len(set(self.hosts)) > 1 else (number,))
        return made

    def groups(self, devices: Sequence[int], anywhere: bool = False) -> list[tuple[int, ...]]:
        """Sets of these devices that operators may be on: of each class the first ones, in the order of the
        devices; `anywhere`: runs that begin elsewhere, too."""
        own: dict[int, list[int]] = {}
        for p in devices:
            own.setdefault(self.classes[p], []).append(p)
        numbers = [[0, *self._numbers(each)] for each in own.values()]
        sets = []
        for counts in product(*numbers):
            if len(own) > 1 and len(devices) > FEW and not _ends_only(counts, list(own.values())):
                continue
            sets.append([each[:n] for each, n in zip(own.values(), counts, strict=True)])
        made = [tuple(sorted(p for each in chosen for p in each)) for chosen in sets]
        if anywhere:
            for n in {len(each) for each in made if each}:
                made += [tuple(devices[i : i + n]) for i in range(n, len(devices) - n + 1, n)]
        return [each for each in dict.fromkeys(made) if each]

    def _numbers(self, devices: Sequence[int]) -> list[int]:
        """Of alike devices, how many a view may take."""
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
            if n == 1:
                made.append(MachineView(group))
                continue
            made.append(MachineView(group, (n,)))
            made += [MachineView(group, (n // k, k)) for k in self._inner(group)]
        return made

    def _inner(self, group: Sequence[int]) -> list[int]:
        """Sizes of the inner axis of a mesh."""
        there = [sum(self.hosts[p] == h for p in group) for h in {self.hosts[p] for p in group}]
        if len(there) > 1:
            return [there[0]] if len(set(there)) == 1 and there[0] > 1 else []
        return [k for k in range(2, len(group) // 2 + 1) if len(group) % k == 0]


def _ends_only(counts: Sequence[int], own: Sequence[Sequence[int]]) -> bool:
    """Of many unlike devices: some of one class, or all of the classes that are there."""
    some = [n for n in counts if n]
    return len(some) == 1 or all(n in (0, len(each)) for n, each in zip(counts, own, strict=True))


@dataclass(frozen=True, eq=False)
class TaskAxis:
    """Along what an operator is cut: in how many blocks, in steps of how many elements."""

    axis: Axis
    way: Way
    dimension: Dimension
    blocks: int = 1
    step: int = 1

    @property
    def steps(self) -> int:
        return self.way.size // self.blocks // self.step


@dataclass(frozen=True, eq=False)
class TaskChoice:
    """Of an operator: along each axis of the mesh what it is cut along, None where it is computed alike.

    Args:
        axes: with the sizes of the pieces.
        weights_cut: axis of the mesh -> whether every weight is cut along it.
    """

    view: MachineView
    axes: tuple[tuple[TaskAxis, tuple[int, ...]] | None, ...] = ()
    weights_cut: tuple[bool, ...] = ()

    @property
    def kind(self) -> TaskKind:
        every = zip(self.axes, self.view.shape, strict=True)
        return tuple((None, 0, n) if a is None else (a[0].axis, a[0].blocks, n) for a, n in every)

    def layout(self, rank: int, where: Sequence[object]) -> Layout:
        """Of a tensor that lies so (`Cat.where`) along each axis; "sum": a term, None: whole."""
        spec, sizes, blocks, partial = [""] * rank, {}, {}, []
        for m, own in enumerate(where):
            if own is None:
                continue
            if own == "sum":
                partial.append(m)
                continue
            chosen = self.axes[m]
            assert chosen is not None
            axis, given = chosen
            spec[own.dim] += str(m)  # type: ignore[attr-defined]
            sizes[m] = tuple(size * own.times for size in given)  # type: ignore[attr-defined]
            blocks[m] = own.blocks * axis.blocks  # type: ignore[attr-defined]
        said = "".join(f"S{axes}" if axes else "R" for axes in spec)
        mesh = Mesh(self.view.devices, self.view.shape or (1,))
        return Layout(mesh, said, sizes, blocks, tuple(partial))

    def reads(self, place: Place, rank: int) -> Layout:
        return self.layout(rank, [None if a is None else a[0].way.cut.get(place) for a in self.axes])

    def makes(self, j: int, rank: int) -> Layout:
        where: list[object] = []
        for own in self.axes:
            how = None if own is None else own[0].way.joined[j]
            where.append(how.where if isinstance(how, Cat) else "sum" if how is not None else None)
        return self.layout(rank, where)

    def tasks(self, node: str, places: Sequence[tuple[int, ...]]) -> OperatorTasks:
        """`places`: of every device of the cluster."""
        cut = [m for m, own in enumerate(self.axes) if own is not None]
        alike = [m for m, own in enumerate(self.axes) if own is None]
        shape = self.view.shape
        cuts = tuple(
            TaskCut(own[0].axis, own[1], own[0].blocks) for m in cut if (own := self.axes[m]) is not None
        )
        copies, weights, where = tuple(shape[m] for m in alike), [], []
        uncut = [m for m in cut if not self.weights_cut[m]]
        for path in product(*(range(shape[m]) for m in cut)):
            number = 0
            for m in uncut:
                number = number * shape[m] + path[cut.index(m)]
            weights.append(number * prod(copies))
            for copy in product(*map(range, copies)):
                at = dict(zip((*cut, *alike), (*path, *copy), strict=True))
                rank = 0
                for m in range(len(shape)):
                    rank = rank * shape[m] + at[m]
                where.append(places[self.view.devices[rank]])
        return OperatorTasks(node, cuts, copies, tuple(weights), places=tuple(where))


@once_of
def task_axes(graph: Graph, name: str, dimensions: tuple[Dimension, ...]) -> tuple[TaskAxis, ...]:
    """What an operator can be cut along. Heads of a fused projection are blocks, as its readers have it."""
    calls, ways = ways_of_graph(graph)
    call, samples = calls[name], samples_axes(graph).get(name)
    told = _blocks_of(graph).get(name, {})
    made = []
    for axis, way in ways[name].items():
        kind = _dimension(call, axis, way, samples)
        if kind not in dimensions or (way.last is not None and _is_read(graph, call.node)):
            continue
        step = way.size // graph.batch_size if kind == "samples" and not way.size % graph.batch_size else 1
        blocks, unit = told.get(axis, (1, step))
        made.append(TaskAxis(axis, way, kind, blocks, unit))
        if blocks > 1:
            made.append(TaskAxis(axis, way, kind))
    return tuple(made)


def _is_read(graph: Graph, node: Node) -> bool:
    return any(graph.variables[k].consumers for k in node.outputs if k)


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


def cut_along(axis: TaskAxis, speeds: Sequence[float]) -> tuple[int, ...]:
    """Sizes of its pieces; () where there are too few steps."""
    return tuple(n * axis.step for n in proportioned(axis.steps, speeds))


def choices_on(
    view: MachineView,
    axes: Sequence[TaskAxis],
    copies: bool,
    weights: Mapping[str, frozenset[Place]],
    machines: Machines,
) -> Iterator[TaskChoice]:
    """All on one view; no more than one axis of the mesh has copies.

    Args:
        weights: initializer -> the places where the operator is given it.
    """
    if not view.shape:
        yield TaskChoice(view)
        return
    options: list[TaskAxis | None] = [*axes, *([None] if copies else [])]
    speeds = [_along(view, m, machines.speed) for m in range(len(view.shape))]
    for chosen in product(options, repeat=len(view.shape)):
        if len(chosen) > 1 and (len({*chosen}) < len(chosen) or _one_axis(chosen)):
            continue
        sized = [None if a is None else (a, cut_along(a, speeds[m])) for m, a in enumerate(chosen)]
        if all(own is None or own[1] for own in sized):
            cut = tuple(
                a is not None and all(there & {*a.way.cut, *a.way.once} for there in weights.values())
                for a in chosen
            )
            yield TaskChoice(view, tuple(sized), cut)


def _one_axis(chosen: Sequence[TaskAxis | None]) -> bool:
    """Whether one axis of the operator is cut twice, as one axis of the mesh may do it."""
    names = [a.axis for a in chosen if a is not None]
    return len(set(names)) < len(names)


def _along(view: MachineView, m: int, speed: Sequence[float]) -> tuple[float, ...]:
    """Of each index along an axis of the mesh, how fast its devices are."""
    total = [0.0] * view.shape[m]
    inner = prod(view.shape[m + 1 :])
    for i, p in enumerate(view.devices):
        total[i // inner % view.shape[m]] += speed[p]
    return tuple(total)
