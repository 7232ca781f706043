"""Layouts that experts write by hand, as choices of Unity's programme: lowered, or their seconds alone.

data parallelism, Megatron's columns and rows, tables apart ──► ends of `best_mapping` ──► seconds, tasks
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from netsplit.errors import RewriteError
from netsplit.partition import Choice, Partitioner, Problem
from netsplit.partition.methods.unity.choices import (
    DIMENSIONS,
    Machines,
    MachineView,
    TaskChoice,
    devices_of,
    hosts,
    tasks_of_mapping,
)
from netsplit.partition.methods.unity.costed import Costed
from netsplit.partition.methods.unity.mapping import Mapped, best_mapping
from netsplit.rewrite import applied, columns_and_rows

__all__ = ["ByHand", "ColumnsAndRows", "DataParallel", "TablesApart"]

Along: TypeAlias = str | tuple[object, int] | None
"""What an axis of the mesh cuts: "samples", an operator's axis with its blocks, or None: copies."""
Wanted: TypeAlias = tuple[tuple[int, ...], tuple[Along, ...]] | int
"""A mesh of all devices, and along what an operator is cut there; or the number of the one that it is on."""


@dataclass(frozen=True, eq=False)
class FewViews(Machines):
    """All devices in these meshes, and some alone."""

    shapes: tuple[tuple[int, ...], ...] = ()
    alone: tuple[int, ...] = (0,)

    def views(self, devices: Sequence[int], anywhere: bool = False) -> list[MachineView]:
        each = [MachineView((devices[p],)) for p in self.alone]
        return each + [MachineView(tuple(devices), shape) for shape in self.shapes]


@dataclass
class ByHand(Partitioner, ABC):
    """What no sentence of the layout is about, and what cannot be so, is as the programme finds it best."""

    @abstractmethod
    def wanted(self, problem: Problem, shape: tuple[int, int]) -> dict[str, list[Wanted]]:
        """What is taken of operators, where there is such a choice; `shape`: hosts, and devices of each.

        Raises:
            RewriteError: the layout is none for this model.
        """

    def mapped(self, problem: Problem) -> tuple[Costed, Mapped]:
        """What the programme makes of it; raises as `wanted`."""
        graph, number, n = problem.graph, hosts(problem.cluster), len(problem.cluster.devices)
        shape = (len(set(number)), n // len(set(number)))
        wanted = self.wanted(problem, shape)
        alone = {p for each in wanted.values() for p in each if isinstance(p, int)}
        own = Machines.of(problem)
        shapes = ((n,), shape) if min(shape) > 1 and shape[0] * shape[1] == n else ((n,),)
        machines = FewViews(
            own.cluster, own.speed, own.hosts, own.classes, shapes, tuple(sorted({0, *alone}))
        )
        costed = Costed(graph, problem.costs, machines, DIMENSIONS)
        every, ends = tuple(range(n)), dict[str, int]()
        for v, vertex in enumerate(costed.vertices):
            for each in wanted.get(vertex.name, ()):
                there = enumerate(costed.options(v, every).choices)
                at = next((i for i, choice in there if _is(choice, each)), None)
                if at is not None:
                    ends[vertex.name] = at
                    break
        return costed, best_mapping(costed, ends, split=False)

    def seconds(self, problem: Problem) -> float:
        """By the programme's costs, nothing lowered; raises as `wanted`."""
        return self.mapped(problem)[1].seconds

    def choose(self, problem: Problem) -> Choice:
        costed, mapped = self.mapped(problem)
        rewrites = tasks_of_mapping(problem.graph, mapped.choices, costed.machines)
        graph = applied(problem.graph, rewrites, scaled="samples")
        return Choice(devices_of(graph, mapped.choices, costed.machines), rewrites=rewrites)


def _is(choice: TaskChoice, wanted: Wanted) -> bool:
    if isinstance(wanted, int):
        return choice.view.devices == (wanted,)
    shape, along = wanted
    cuts = [own and own[0] for own in choice.axes]
    return choice.view.shape == shape and all(
        cut is None if own is None else cut and own in (cut.dimension, (cut.axis, cut.blocks))
        for cut, own in zip(cuts, along, strict=True)
    )


@dataclass
class DataParallel(ByHand):
    """Samples over all devices, which all have the weights."""

    name = "data_parallel"

    def wanted(self, problem: Problem, shape: tuple[int, int]) -> dict[str, list[Wanted]]:
        every = (len(problem.cluster.devices),)
        return {name: [(every, ("samples",)), (every, (None,))] for name in problem.graph.nodes}


@dataclass
class ColumnsAndRows(ByHand):
    """Megatron's: samples over servers, products by columns and rows within, all else on every device."""

    name = "columns_and_rows"

    def wanted(self, problem: Problem, shape: tuple[int, int]) -> dict[str, list[Wanted]]:
        parts = (1.0,) * shape[1]
        chains = [each for each in columns_and_rows(problem.graph) if each.chained and each.splits(parts)]
        if not chains:
            raise RewriteError(f"no products can be cut by columns, then rows, in {shape[1]} parts.")
        cuts = {name: (cut.axis, cut.blocks) for each in chains for name, cut in each.cuts.items()}
        all_of = (len(problem.cluster.devices),)
        if shape[0] == 1:
            return {name: [(all_of, (cuts.get(name),))] for name in problem.graph.nodes}
        return {
            name: [(shape, ("samples", cuts.get(name))), (all_of, (None,))] for name in problem.graph.nodes
        }


@dataclass
class TablesApart(DataParallel):
    """Whole tables on one device each, of one host after another; all else data parallel."""

    name = "tables_apart"

    def wanted(self, problem: Problem, shape: tuple[int, int]) -> dict[str, list[Wanted]]:
        tables, number = _tables(problem), hosts(problem.cluster)
        turns = sorted(range(len(number)), key=lambda p: (number[:p].count(number[p]), number[p]))
        apart: dict[str, list[Wanted]] = {name: [turns[i % len(turns)]] for i, name in enumerate(tables)}
        return super().wanted(problem, shape) | apart

    def seconds(self, problem: Problem) -> float:
        """Tables of several hosts are read at once, which the programme has one after another."""
        costed, mapped = self.mapped(problem)
        every, apart = tuple(range(len(problem.cluster.devices))), dict[int, float]()

        def chosen(v: int) -> int:
            return costed.options(v, every).choices.index(mapped.choices[costed.vertices[v].name])

        total, tables = mapped.seconds, _tables(problem)
        for v, vertex in enumerate(costed.vertices):
            if vertex.name not in tables:
                continue
            own_s = float(costed.options(v, every).seconds[chosen(v)])
            for link in costed.links:
                if link.source == v and costed.vertices[link.target].nodes:
                    own_s += float(costed.moving(link, every, every)[chosen(v), chosen(link.target)])
            (device,) = mapped.choices[vertex.name].view.devices
            host = costed.machines.hosts[device]
            apart[host] = apart.get(host, 0.0) + own_s
            total -= own_s
        return total + max(apart.values(), default=0.0)


def _tables(problem: Problem) -> list[str]:
    return [node.name for node in problem.graph if "embedding" in node.op]
