"""A layered layout (Sugiyama): longest-path layers, barycentre order.

1. layer    every box one below its lowest predecessor; sources pulled down to their first reader
2. bends    an edge over several layers gets a small invisible box in each layer between
3. order    sweeps down and up sort each layer by the mean place of its neighbours
4. x        each box moves to the mean of its neighbours, as far as its layer has room
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from netsplit.graph.quotient import longest_before

__all__ = ["LayeredLayout", "layered_layout"]

_SWEEPS = 12
_BEND_WIDTH = 0.12  # of a box

Point = tuple[float, float]


@dataclass(frozen=True)
class LayeredLayout:
    """Centres in units of one box width and one layer, y downwards; and the points of each edge."""

    boxes: tuple[Point, ...]
    paths: dict[tuple[int, int], tuple[Point, ...]]
    width: float
    height: float


def layered_layout(count: int, edges: Sequence[tuple[int, int]]) -> LayeredLayout:
    """Place boxes 0..count-1, which are in a topological order of `edges`."""
    chains, layer = _bends(edges, _layers(count, edges))
    total = len(layer)
    before, after = _neighbours(total, {pair for chain in chains.values() for pair in pairwise(chain)})
    layers: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for box in range(total):
        layers[layer[box]].append(box)
    _order(layers, before, after)
    widths = [1.0 if box < count else _BEND_WIDTH for box in range(total)]
    x = _placed(layers, before, after, widths)
    low = min((at - width / 2 for at, width in zip(x, widths, strict=True)), default=0.0)
    high = max((at + width / 2 for at, width in zip(x, widths, strict=True)), default=1.0)
    points = [(at - low, layer[box] + 0.5) for box, at in enumerate(x)]
    paths = {edge: tuple(points[box] for box in chain) for edge, chain in chains.items()}
    return LayeredLayout(tuple(points[:count]), paths, max(high - low, 1.0), len(layers))


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


def _placed(
    layers: list[list[int]], before: list[list[int]], after: list[list[int]], widths: Sequence[float]
) -> list[float]:
    """[boxes] x of each, with its layer's order as it is."""
    x = [0.0] * len(widths)
    for sweep in range(2 * _SWEEPS + 1):
        for row in layers if sweep % 2 == 0 else reversed(layers):
            near = ([x[n] for n in (*before[box], *after[box])] or [x[box]] for box in row)
            _spread(row, [sum(each) / len(each) for each in near], widths, x)
    return x


def _spread(row: Sequence[int], wanted: Sequence[float], widths: Sequence[float], x: list[float]) -> None:
    """Set x of a layer: nearest to `wanted` in least squares, in order and without overlap.

    With the widths taken off, "without overlap" is "not decreasing": isotonic regression.
    """
    from scipy.optimize import isotonic_regression

    own = np.array([widths[box] for box in row])
    offsets = np.cumsum(own) - own / 2
    means = isotonic_regression(np.array(wanted) - offsets).x
    for box, at in zip(row, (means + offsets).tolist(), strict=True):
        x[box] = at
