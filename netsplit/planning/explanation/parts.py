"""Operators that a placement has cut in parts: along which dimension, which part of it, and where."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from netsplit.graph.ir import Graph
from netsplit.partition.base import Placement
from netsplit.planning.explanation.notation import counted, is_path, listed, percent, short
from netsplit.rewrite.records import CopyWeights, Split

__all__ = [
    "PartsChange",
    "PlacedPart",
    "PlacedSplit",
    "parts_change",
    "parts_lines",
    "parts_summary",
    "placed_splits",
    "restated",
]

_PART = re.compile(r"(?P<operator>.+):(?P<index>\d+)(?: (?P<again>\d+))?")


@dataclass(frozen=True)
class PlacedPart:
    """A part of an operator: its size, and its devices: several where it was cut again, or has replicas."""

    size: int
    fraction: float  # of the dimension
    nodes: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True)
class PlacedSplit:
    """An operator in parts."""

    operator: str
    axis: int | str  # `Split.axis`
    blocks: int
    parts: tuple[PlacedPart, ...]
    module: str = ""  # that it is of, where the graph was asked
    samples: bool = False  # the axis is that of the samples, as far as is known

    @property
    def name(self) -> str:
        """``linear_2 (encoder.fc1)``; without what is no path of modules."""
        return (
            f"{short(self.operator)} ({short(self.module)})" if is_path(self.module) else short(self.operator)
        )

    @property
    def along(self) -> str:
        """In words."""
        if self.samples:
            return "the samples"
        argument, dot, number = str(self.axis).rpartition(".")
        axis = f"dimension {number}" if number.isdecimal() else str(self.axis)
        axis += f" of {argument}" if dot and number.isdecimal() else ""
        return f"{axis}, in {self.blocks} blocks" if self.blocks > 1 else axis

    @property
    def told(self) -> str:
        """``50 % on cpu:0, 50 % on cpu:1``; of one device, ``all 2 parts on cpu:0 (50 %, 50 %)``."""
        homes = {p.devices for p in self.parts}
        if len(self.parts) > 1 and len(homes) == 1 == len(self.parts[0].devices):
            fractions = ", ".join(percent(p.fraction, 1.0) for p in self.parts)
            return f"all {len(self.parts)} parts on {self.parts[0].devices[0]} ({fractions})"
        return ", ".join(f"{percent(p.fraction, 1.0)} on {listed(p.devices) or '-'}" for p in self.parts)

    def renamed(self, names: Mapping[str, str]) -> PlacedSplit:
        """With devices under these names, where they have others."""
        parts = (replace(p, devices=tuple(names.get(q, q) for q in p.devices)) for p in self.parts)
        return replace(self, parts=tuple(parts))


@dataclass(frozen=True)
class PartsChange:
    """What one placement has in other parts, or with other copies of weights, than another."""

    split: tuple[PlacedSplit, ...]  # operators that only the second has in parts
    recut: tuple[PlacedSplit, ...]  # that it has in other parts than the first
    joined: tuple[str, ...]  # that are whole again
    copied: tuple[str, ...]  # nodes that read copies of weights that they did not read before
    uncopied: tuple[str, ...]  # and those that read none any more


def placed_splits(placement: Placement, graph: Graph | None = None) -> tuple[PlacedSplit, ...]:
    """Of every `Split` of a placement, in the order in which they are done; with modules, of its graph.

    A second one of a name cuts what puts the parts of the first together: parts whose names these have
    already are `linear:0 2`.
    """
    splits = [each for each in placement.rewrites if isinstance(each, Split)]
    cut = {each.node for each in splits}  # a node of that name puts parts together
    nodes: dict[tuple[str, int], dict[int, list[str]]] = {}
    for name in placement.device_of if cut else ():
        for operator, index, again in _part_of(name) if name not in cut else ():
            nodes.setdefault((operator, index), {}).setdefault(again, []).append(name)
    placed = []
    done = Counter[tuple[str, int]]()
    for each in splits:
        own = []
        for index in range(len(each.sizes)):
            several = sorted(nodes.get((each.node, index), {}).items())
            own += [names for _, names in several[done[each.node, index] :][:1]] or [[]]
            done[each.node, index] += 1
        parts = tuple(_parts(each, placement, own))
        first = next((name for part in parts for name in part.nodes), None)
        module = "" if graph is None or first is None else graph.nodes[first].module
        placed.append(PlacedSplit(each.node, each.axis, each.blocks, parts, module))
    return tuple(placed)


def _part_of(name: str) -> Iterator[tuple[str, int, int]]:
    """What a node would be a part of by its name, which, and of which cut of that name (1: the first): of a
    part that was cut again, of both."""
    while (match := _PART.fullmatch(name)) is not None:
        name = match["operator"]
        yield name, int(match["index"]), int(match["again"] or 1)


def _parts(split: Split, placement: Placement, nodes: Sequence[Sequence[str]]) -> Iterator[PlacedPart]:
    """`nodes`: of each part."""
    for size, own in zip(split.sizes, nodes, strict=True):
        homes = dict.fromkeys(placement.device_of[name] for name in own)
        devices = tuple(dict.fromkeys(q for p in homes for q in placement.replicas.get(p, (p,))))
        yield PlacedPart(size, size / sum(split.sizes), tuple(own), devices)


def _groups(splits: Sequence[PlacedSplit]) -> list[list[PlacedSplit]]:
    """Those in parts alike together (along one dimension, by the same fractions, on the same devices)."""
    alike: dict[tuple[str, str], list[PlacedSplit]] = {}
    for each in splits:
        alike.setdefault((each.along, each.told), []).append(each)
    return list(alike.values())


def _named(group: Sequence[PlacedSplit], most: int) -> str:
    """``linear (fc1), linear_1 (fc2), gelu and 9 more``."""
    rest = len(group) - most
    return listed([*(each.name for each in group[:most]), *([f"{rest} more"] if rest > 0 else [])])


def parts_summary(splits: Sequence[PlacedSplit], most: int = 4) -> str:
    """One line, of the first few groups; "" where nothing is in parts."""
    if not splits:
        return ""
    groups = _groups(splits)
    told = "; ".join(f"{_named(each, 3)} along {each[0].along}: {each[0].told}" for each in groups[:most])
    left = sum(map(len, groups[most:]))
    rest = f"; and {left} more" if left else ""
    return f"{counted(len(splits), 'operator')} in parts: {told}{rest}"


def parts_lines(splits: Sequence[PlacedSplit]) -> Iterator[str]:
    """One text for each group; `wrapped` makes lines of it."""
    for each in _groups(splits):
        of_each, first = "each " if len(each) > 1 else "", each[0]
        yield f"{_named(each, 8)} {of_each}in {len(first.parts)} parts along {first.along}: {first.told}"


def parts_change(before: Placement, after: Placement, graph: Graph) -> PartsChange:
    """From one placement to another, which is of this graph."""
    old, new = map(_cuts, (before, after))
    had, has = map(_copies, (before, after))
    placed = placed_splits(after, graph) if old != new else ()
    return PartsChange(
        split=tuple(each for each in placed if each.operator not in old),
        recut=tuple(
            each for each in placed if old.get(each.operator, new[each.operator]) != new[each.operator]
        ),
        joined=tuple(name for name in old if name not in new),
        copied=tuple(name for name, copy in has.items() if had.get(name) != copy),
        uncopied=tuple(name for name in had if name not in has),
    )


def _cuts(placement: Placement) -> dict[str, tuple[Split, ...]]:
    """By node: several where what puts the parts together was cut, too."""
    cuts: dict[str, tuple[Split, ...]] = {}
    for each in placement.rewrites:
        if isinstance(each, Split):
            cuts[each.node] = (*cuts.get(each.node, ()), each)
    return cuts


def _copies(placement: Placement) -> dict[str, int]:
    """By node, of those that read others than the first."""
    return {
        each.node: each.copy for each in placement.rewrites if isinstance(each, CopyWeights) and each.copy
    }


def restated(placement: Placement, graph: Graph) -> Placement:
    """Of a graph with other rewrites: parts where their operator was, an operator where its parts are put
    together, and the pieces of a tensor where they are read."""
    known = {name: _known(name, placement) for name in graph.nodes}
    for name in reversed(graph.nodes):
        if not known[name]:
            readers = (
                reader for k in graph.nodes[name].outputs if k for reader in graph.variables[k].consumers
            )
            known[name] = next((known[reader] for reader in readers if known[reader]), "")
    for name, feeders in graph.predecessors.items():
        known[name] = known[name] or next((known[u] for u in feeders if known[u]), "")
    ranked = sorted(graph.nodes, key=lambda v: (placement.priority[known[v]], graph.position[v]))
    stages = tuple(
        replace(stage, nodes=tuple(v for v in graph.nodes if known[v] in stage.nodes))
        for stage in placement.stages
    )
    return replace(
        placement,
        device_of={v: placement.device_of[known[v]] for v in graph.nodes},
        priority={v: rank for rank, v in enumerate(ranked)},
        stages=stages,
        cuts=tuple(v for v in placement.cuts if v in graph.nodes),
        recomputed=frozenset(v for v in graph.nodes if known[v] in placement.recomputed),
        rewrites=graph.rewrites,
    )


def _known(name: str, placement: Placement) -> str:
    """The node itself, or the operator that it is a part of; "" where neither is placed."""
    while name and name not in placement.device_of:
        name = name.rpartition(":")[0]
    return name
