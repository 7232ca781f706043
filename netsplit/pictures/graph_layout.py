"""A layered layout (Sugiyama): longest-path layers, barycentre order, wrapped into columns.

    1. layer    every box one below its lowest predecessor; sources pulled down to their first reader
    2. bends    an edge over several layers gets a small invisible box in each layer between
    3. order    sweeps down and up sort each layer by the mean place of its neighbours
    4. wrap     the tall strip is broken into columns where the fewest edges cross
    5. x        each box moves to the mean of its neighbours in its column, as far as its layer has room

An edge from one column to the next is not drawn across the picture: it ends in a `Jump`, a lettered
connector at the column's foot, and goes on from the connector of the same letter at the next one's head,
where those that lead to one box stand side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from netsplit.graph.quotient import longest_before

__all__ = ["Jump", "LayeredLayout", "layered_layout"]

_SWEEPS = 12
_BEND_WIDTH = 0.12  # of a box
_GAP = 0.35  # between columns
_HEAD = 0.5  # layers above a column, and below it, for connectors
_CONNECTOR_WIDTH = 0.14  # of a box


Point = tuple[float, float]
Piece = tuple[Point, ...]  # one unbroken line, downwards


@dataclass(frozen=True)
class Jump:
    """A connector pair; it carries the output of the box `source` to the boxes `targets`."""

    source: int
    targets: tuple[int, ...]
    foot: Point
    head: Point


@dataclass(frozen=True)
class LayeredLayout:
    """Centres in units of one box width and one layer, y downwards; and the pieces of each edge."""

    boxes: tuple[Point, ...]
    paths: dict[tuple[int, int], tuple[Piece, ...]]
    jumps: tuple[Jump, ...]
    width: float
    height: float


def layered_layout(count: int, edges: Sequence[tuple[int, int]], columns: int = 1) -> LayeredLayout:
    """Place boxes 0..count-1, which are in a topological order of `edges`."""
    chains, layer = _bends(edges, _layers(count, edges))
    total = len(layer)
    before, after = _neighbours(total, {pair for chain in chains.values() for pair in pairwise(chain)})
    layers: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for box in range(total):
        layers[layer[box]].append(box)
    _order(layers, before, after)
    widths = [1.0 if box < count else _BEND_WIDTH for box in range(total)]
    points: list[Point] = [(0.0, 0.0)] * total
    column_of = [0] * total
    starts = _breaks(layers, columns)
    left = 0.0
    for column, (start, end) in enumerate(pairwise([*starts, len(layers)])):
        left += _place_column(layers[start:end], before, after, widths, left, points) + _GAP
        for box in (box for row in layers[start:end] for box in row):
            column_of[box] = column
    height = max((y for _, y in points), default=0.0) + 0.5 + _HEAD
    feet = [end - start + 1.3 * _HEAD for start, end in pairwise([*starts, len(layers)])]
    paths, jumps = _paths(chains, points, column_of, feet)
    return LayeredLayout(tuple(points[:count]), paths, jumps, max(left - _GAP, 1.0), height)


def _neighbours(count: int, edges: Iterable[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        before[b].append(a)
        after[a].append(b)
    return before, after


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    before, after = _neighbours(count, edges)
    layer = longest_before(before, range(count), [1] * count)
    for box in reversed(range(count)):
        if after[box] and len(before[box]) < len(after[box]):
            layer[box] = min(layer[b] for b in after[box]) - 1
    return layer


def _bends(
    edges: Sequence[tuple[int, int]], layer: Sequence[int]
) -> tuple[dict[tuple[int, int], list[int]], list[int]]:
    """Edge -> its boxes from layer to layer, bends included; and the layers with bends.

    Edges that leave one box share their bends: one line, which forks only where it must.
    """
    layers = list(layer)
    chains: dict[tuple[int, int], list[int]] = {}
    bend_of: dict[tuple[int, int], int] = {}
    for a, b in edges:
        chain = [a]
        for between in range(layer[a] + 1, layer[b]):
            if (a, between) not in bend_of:
                bend_of[a, between] = len(layers)
                layers.append(between)
            chain.append(bend_of[a, between])
        chains[a, b] = [*chain, b]
    return chains, layers


def _order(layers: list[list[int]], before: list[list[int]], after: list[list[int]]) -> None:
    """Sort every layer in place by its neighbours' mean position, sweeping down and up."""
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        place = {box: i for row in layers for i, box in enumerate(row)}
        neighbours = before if down else after
        for row in layers if down else reversed(layers):
            means = {box: [place[n] for n in neighbours[box]] or [place[box]] for box in row}
            row.sort(key=lambda box: sum(means[box]) / len(means[box]))
            place |= {box: i for i, box in enumerate(row)}


def _place_column(
    layers: list[list[int]],
    before: list[list[int]],
    after: list[list[int]],
    widths: Sequence[float],
    left: float,
    points: list[Point],
) -> float:
    """Place one column at `left`; returns its width."""
    inside = {box for row in layers for box in row}
    x = dict.fromkeys(inside, 0.0)
    for sweep in range(2 * _SWEEPS + 1):
        for row in layers if sweep % 2 == 0 else reversed(layers):
            wanted = []
            for box in row:
                near = [x[n] for n in (*before[box], *after[box]) if n in inside]
                wanted.append(sum(near) / len(near) if near else x[box])
            _spread(row, wanted, widths, x)
    low = min((x[box] - widths[box] / 2 for box in inside), default=0.0)
    high = max((x[box] + widths[box] / 2 for box in inside), default=1.0)
    for depth, row in enumerate(layers):
        for box in row:
            points[box] = (x[box] - low + left, depth + 0.5 + _HEAD)
    return high - low


def _spread(
    row: Sequence[int], wanted: Sequence[float], widths: Sequence[float], x: dict[int, float]
) -> None:
    """Set x of a layer: nearest to `wanted` in least squares, in order and without overlap.

    With the widths taken off, "without overlap" is "not decreasing": isotonic regression.
    """
    from scipy.optimize import isotonic_regression

    own = np.array([widths[box] for box in row])
    offsets = np.cumsum(own) - own / 2
    means = isotonic_regression(np.array(wanted) - offsets).x
    x.update(zip(row, (means + offsets).tolist(), strict=True))


def _paths(
    chains: dict[tuple[int, int], list[int]],
    points: Sequence[Point],
    column_of: Sequence[int],
    feet: Sequence[float],
) -> tuple[dict[tuple[int, int], tuple[Piece, ...]], tuple[Jump, ...]]:
    """Edges as pieces within one column each, and the connectors between columns."""
    paths: dict[tuple[int, int], tuple[Piece, ...]] = {}
    jumps: dict[tuple[int, int], Jump] = {}  # by the boxes or bends at the break
    broken = {(a, b) for chain in chains.values() for a, b in pairwise(chain) if column_of[a] != column_of[b]}
    heads = _heads(broken, points, column_of)
    for edge, chain in chains.items():
        pieces: list[list[Point]] = [[points[chain[0]]]]
        for a, b in pairwise(chain):
            if (a, b) in broken:
                targets = jumps[a, b].targets if (a, b) in jumps else ()
                foot = (points[a][0], feet[column_of[a]])
                jump = jumps[a, b] = Jump(edge[0], (*targets, edge[1]), foot, heads[a, b])
                pieces[-1].append(jump.foot)
                pieces.append([jump.head])
            pieces[-1].append(points[b])
        paths[edge] = tuple(tuple(piece) for piece in pieces)
    return paths, tuple(jumps.values())


def _heads(
    broken: Iterable[tuple[int, int]], points: Sequence[Point], column_of: Sequence[int]
) -> dict[tuple[int, int], Point]:
    """Where edges continue in a column: above their boxes or bends, without overlap."""
    pairs = sorted(broken, key=lambda pair: (points[pair[1]][0], points[pair[0]][0], pair))
    x: dict[int, float] = {}
    for column in {column_of[b] for _, b in pairs}:
        row = [i for i, (_, b) in enumerate(pairs) if column_of[b] == column]
        _spread(row, [points[pairs[i][1]][0] for i in row], [_CONNECTOR_WIDTH] * len(pairs), x)
    return {pair: (x[i], _HEAD / 2) for i, pair in enumerate(pairs)}


def _breaks(layers: list[list[int]], columns: int) -> list[int]:
    """First layer of each column: near even heights, at narrow layers."""
    even = len(layers) / max(columns, 1)
    starts = [0]
    for column in range(1, columns):
        around = range(int((column - 0.15) * even), int((column + 0.15) * even) + 1)
        candidates = [depth for depth in around if starts[-1] < depth < len(layers)]
        if candidates:
            starts.append(min(candidates, key=lambda d: (len(layers[d - 1]), abs(d - column * even))))
    return starts
