"""Operators in parts: along which dimension each is cut, and where its parts are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from netsplit.errors import RewriteError
from netsplit.graph.ir import Graph, Node
from netsplit.placement.placement import Placement
from netsplit.rewrite.algebra.rule import Algebra
from netsplit.rewrite.lowering import lowered_from
from netsplit.rewrite.pcg import ParallelGraph
from netsplit.rewrite.records import folded
from netsplit.rewrite.tasks import axis_words
from netsplit.tables import counted, listed, percent, seconds, short

__all__ = [
    "PlacedPart", "PlacedSplit", "algebra_lines", "operator_name", "parallel_graph", "parts_summary",
    "placed_splits", "placed_views", "shortened_list",
]  # fmt: skip


@dataclass(frozen=True)
class PlacedPart:
    """A part of an operator; it has several devices if it was cut again or has replicas."""

    size: int
    fraction: float  # of the dimension
    nodes: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True)
class PlacedSplit:
    """An operator in parts, or a part of one."""

    operator: str
    axis: int | str  # `Split.axis`
    blocks: int
    parts: tuple[PlacedPart, ...]
    module: str = ""  # of the operator, if known
    samples: bool = False  # whether the axis is known to be that of the samples
    captured: str = ""  # the operator, of a part of one

    @property
    def name(self) -> str:
        """``linear_2 (encoder.fc1)``; the operator alone if `module` is no dotted path, but words."""
        is_path = re.fullmatch(r"[\w.]+", self.module) is not None
        return f"{short(self.operator)} ({short(self.module)})" if is_path else short(self.operator)

    @property
    def along(self) -> str:
        """The axis in words."""
        return axis_words(self.axis, self.blocks, self.samples)

    @property
    def where(self) -> str:
        """``50 % on cpu:0, 50 % on cpu:1``; of one device, ``all 2 parts on cpu:0 (50 %, 50 %)``."""
        homes = {p.devices for p in self.parts}
        if len(self.parts) > 1 and len(homes) == 1 == len(self.parts[0].devices):
            fractions = ", ".join(percent(p.fraction, 1.0) for p in self.parts)
            return f"all {len(self.parts)} parts on {self.parts[0].devices[0]} ({fractions})"
        return ", ".join(f"{percent(p.fraction, 1.0)} on {listed(p.devices) or '-'}" for p in self.parts)


def placed_splits(placement: Placement, graph: Graph) -> tuple[PlacedSplit, ...]:
    """The splits of every operator in parts, then of every part that is cut again."""
    nodes: dict[tuple[str, tuple[int, ...]], list[Node]] = {}
    for node in graph:
        if node.part is not None and not node.part.moves:
            path = tuple(cut.index for cut in node.part.cuts)
            for depth in range(len(path)):
                nodes.setdefault((node.part.operator, path[:depth]), []).append(node)
    placed = []
    for (operator, path), own in nodes.items():
        assert own[0].part is not None
        cut = own[0].part.cuts[len(path)]
        parts = tuple(_parts(placement, own, len(path)))
        name = ":".join((operator, *map(str, path)))
        placed.append(PlacedSplit(name, cut.axis, cut.blocks, parts, own[0].module, captured=operator))
    return tuple(placed)


def _parts(placement: Placement, nodes: Sequence[Node], depth: int) -> Iterator[PlacedPart]:
    """`nodes`: of all parts; `depth`: of the cut."""
    own: dict[int, list[Node]] = {}
    for node in nodes:
        assert node.part is not None
        own.setdefault(node.part.cuts[depth].index, []).append(node)
    for index in sorted(own):
        role = own[index][0].part
        assert role is not None
        names = tuple(node.name for node in own[index])
        homes = dict.fromkeys(placement.device_of[name] for name in names)
        devices = tuple(dict.fromkeys(q for p in homes for q in placement.replicas.get(p, (p,))))
        yield PlacedPart(role.cuts[depth].size, role.cuts[depth].fraction, names, devices)


def shortened_list(names: Sequence[str], most: int) -> str:
    """``fc1, fc2, gelu and 9 more``."""
    rest = len(names) - most
    return listed([*names[:most], *([f"{rest} more"] if rest > 0 else [])])


def parts_summary(splits: Sequence[PlacedSplit], most: int = 4) -> str:
    """One line on the first few groups of equal splits; "" without splits."""
    if not splits:
        return ""
    alike: dict[tuple[str, str], list[PlacedSplit]] = {}
    for each in splits:
        alike.setdefault((each.along, each.where), []).append(each)
    groups = list(alike.values())
    lines = "; ".join(
        f"{shortened_list([each.name for each in group], 3)} along {along}: {where}"
        for (along, where), group in [*alike.items()][:most]
    )
    every = {own.captured for own in splits}
    shown = {own.captured for group in groups[:most] for own in group}
    rest = f"; and {len(every - shown)} more" if every - shown else ""
    return f"{counted(len(every), 'operator')} in parts: {lines}{rest}"


def algebra_lines(placement: Placement) -> tuple[str, ...]:
    """Rules that replaced operators, in order, with the plan's seconds after each if noted."""
    records = [each for each in placement.rewrites if isinstance(each, Algebra)]
    steps = placement.report.notes.get("substitutions") or [(r.rule.name, r.node, None) for r in records]
    return tuple(
        f"{rule} at '{short(node)}'{'' if after_s is None else f': then {seconds(after_s)}'}"
        for rule, node, after_s in steps
    )


def parallel_graph(placement: Placement, graph: Graph) -> tuple[Graph, ParallelGraph] | None:
    """The operators after algebra, with the moves between their parts.

    None: nothing is rewritten, or a part is cut by itself, which no mesh describes.
    """
    before = lowered_from(graph)
    operators = graph if before is None else before.captured
    try:
        tasks = tuple(folded(placement.rewrites).values())
        return (operators, ParallelGraph.of(operators, tasks)) if placement.rewrites else None
    except RewriteError:
        return None


def placed_views(placement: Placement, graph: Graph) -> dict[str, tuple[str, ...]]:
    """Operator -> the devices that compute it, or parts of it."""
    views: dict[str, dict[str, None]] = {}
    for node in graph:
        if node.part is None or not node.part.moves:
            views.setdefault(operator_name(node), {})[placement.device_of[node.name]] = None
    return {operator: tuple(devices) for operator, devices in views.items()}


def operator_name(node: Node) -> str:
    """The operator that a node is, or is a part of."""
    return node.name if node.part is None else node.part.operator
