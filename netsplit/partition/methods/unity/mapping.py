"""The best tasks and views of all operators: a dynamic programme over the graph taken apart.

    [a] ─ n ─ [b]      in a row:    for each choice of a and b the least over n's
    [a] ═════ [b]      side by side: the sum of both on all devices, or the longer of the two, on some each
    [a]── tree         hanging:     the least over the tree's

A vertex with two neighbours, or one, goes; two ways between the same ends become one. What is left when no
vertex can go so has three neighbours or more: its table has as many axes. Where a table would have too many
elements, the vertex with most neighbours gets what is best by its neighbours, and that is said.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from typing import Any, TypeAlias

import numpy as np

from netsplit.compiled import Floats, Ints
from netsplit.partition.methods.unity.choices import TaskChoice
from netsplit.partition.methods.unity.costed import Costed, Devices, TensorLink

__all__ = ["Mapped", "best_mapping"]

NOWHERE = -1  # the vertex of one choice that a tree begins at
LARGEST = 4_000_000  # elements of a table
BRANCHES = 4  # of which every division is looked at

Division: TypeAlias = tuple[tuple[tuple[int, ...], Devices], ...]
"""Which of some ways side by side are on which devices."""
Pick: TypeAlias = Callable[[int, int], dict[int, tuple[Devices, int]]]
"""Choices of both ends -> of every vertex between them, devices and number of its choice there."""


@dataclass(frozen=True)
class Mapped:
    """The choice of every operator, and the seconds of all. `fixed`: operators whose choice was made by their
    neighbours' alone, as the graph did not decompose there."""

    choices: Mapping[str, TaskChoice]
    seconds: float
    fixed: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _WayBetween:
    """What is between two vertices, of which `a` is before `b` where it is `directed`.

    A "link", a "row" (two ways and the vertex between; from nowhere the second alone), ways "beside" one
    another, or a "turned" one.
    """

    kind: str
    a: int
    b: int
    key: str  # without names
    directed: bool
    link: TensorLink | None = None
    middle: int = -1
    ways: tuple[_WayBetween, ...] = ()
    hanging: _WayBetween | None = None  # on the middle, from nowhere
    count: int = 0  # of operators in it

    def turned(self) -> _WayBetween:
        """From b to a."""
        return _WayBetween("turned", self.b, self.a, f"~({self.key})", False, ways=(self,), count=self.count)


def best_mapping(
    costed: Costed,
    ends: Mapping[str, int] | None = None,
    cache: bool = True,
    split: bool = True,
) -> Mapped:
    """Tasks and views of all operators, for which the costs are least.

    Args:
        ends: operator -> number of its choice (`Costed.options`), of those that are fixed.
        cache: tables are kept, for later calls, too.
        split: branches may be on devices of their own.
    """
    every = tuple(range(len(costed.machines.cluster.devices)))
    return _Programme(costed, every, dict(ends or {}), cache, split).run()


@dataclass(eq=False)
class _Programme:
    costed: Costed
    devices: Devices
    ends: Mapping[str, int]
    cache: bool
    split: bool
    hanging: dict[int, _WayBetween] = field(default_factory=dict)
    fixed: dict[int, int] = field(default_factory=dict)
    loose: list[int] = field(default_factory=list)
    own: dict[object, tuple[Floats, Any]] = field(default_factory=dict)

    def run(self) -> Mapped:
        vertices = self.costed.vertices
        for v, vertex in enumerate(vertices):
            if vertex.name in self.ends:
                self.fixed[v] = self.ends[vertex.name]
        ways, left = dict[tuple[int, int], _WayBetween](), set(range(len(vertices)))
        for e in self.costed.links:
            _put_beside(ways, _WayBetween("link", e.source, e.target, e.key, True, e))
        self._reduce(ways, left)
        picked, seconds = self._rest(ways, left)
        choices = {
            name: self.costed.options(v, devices).choices[number]
            for v, (devices, number) in picked.items()
            for name in vertices[v].nodes
        }
        return Mapped(choices, seconds, tuple(vertices[v].name for v in self.loose))

    def _reduce(self, ways: dict[tuple[int, int], _WayBetween], left: set[int]) -> None:
        """Take away vertices with one neighbour or two."""
        near: dict[int, set[int]] = {v: set() for v in left}
        for a, b in ways:
            near[a].add(b)
            near[b].add(a)

        def turn(v: int) -> tuple[int, bool, int]:
            """First what leads to one vertex alone: else it would not be beside what also does."""
            leads = len(near[v]) == 1 and all(_before(ways[_pair(v, u)], v) for u in near[v])
            return len(near[v]), not leads, v

        queue = [turn(v) for v in left]
        heapq.heapify(queue)
        while queue:
            now = heapq.heappop(queue)
            v = now[2]
            if v not in left or now != turn(v) or not 1 <= len(near[v]) <= 2:
                continue
            left.discard(v)
            hanging = self.hanging.pop(v, None)
            some = sorted(near.pop(v))
            for u in some:
                near[u].discard(v)
            if len(some) == 1:
                (u,) = some
                way = _towards(ways.pop(_pair(v, u)), u)
                made = self._row(None, v, hanging, way)
                self.hanging[u] = _joined([self.hanging[u], made]) if u in self.hanging else made
            else:
                a, b = some
                first, second = ways.pop(_pair(a, v)), ways.pop(_pair(v, b))
                if _before(first, v) and _before(second, b):
                    a, b, first, second = b, a, second, first
                _put_beside(ways, self._row(_towards(first, v), v, hanging, _towards(second, b)))
                near[a].add(b)
                near[b].add(a)
            for u in some:
                heapq.heappush(queue, turn(u))

    def _row(
        self, first: _WayBetween | None, v: int, hanging: _WayBetween | None, second: _WayBetween
    ) -> _WayBetween:
        vertex, own = self.costed.vertices[v], [each for each in (first, hanging) if each is not None]
        fixed = f"={self.fixed[v]}" if v in self.fixed else ""
        said = "-".join(each.key if each else "" for each in (first, hanging, second))
        key = self.costed.number(f"({vertex.key}{fixed}-{said})")
        count = second.count + len(vertex.nodes) + sum(each.count for each in own)
        directed = second.directed and all(each.directed for each in own[:1])
        a, ways = NOWHERE if first is None else first.a, (second,) if first is None else (first, second)
        return _WayBetween("row", a, second.b, key, directed, None, v, ways, hanging, count)

    # -- tables: [choices of a, choices of b] of what is between them

    def _table(self, way: _WayBetween, inner: Devices, at_a: Devices, at_b: Devices) -> tuple[Floats, Pick]:
        cache = self.costed.known.tables if self.cache else self.own
        key = way.key, inner, at_a, at_b, self.split
        if key not in cache:
            cache[key] = self._made(way, inner, at_a, at_b)
        table, argument = cache[key]
        return table, lambda i, j: self._picked(way, inner, at_a, at_b, argument, i, j)

    def _made(self, way: _WayBetween, inner: Devices, at_a: Devices, at_b: Devices) -> tuple[Floats, object]:
        """Seconds, and what leads to them."""
        if way.kind == "link":
            assert way.link is not None
            return self.costed.moving(way.link, at_a, at_b), None
        if way.kind == "turned":
            return self._table(way.ways[0], inner, at_b, at_a)[0].T, None
        if way.kind == "row":
            first = self._unary(way.middle, inner, way.hanging, inner)[None, :]
            if len(way.ways) > 1:
                first = first + self._table(way.ways[0], inner, at_a, inner)[0]
            second = self._table(way.ways[-1], inner, inner, at_b)[0]
            least = np.empty((len(first), second.shape[1]))
            which = np.empty(least.shape, np.int32)
            turned = np.ascontiguousarray(second.T)
            for i, row in enumerate(first):
                total = turned + row[None, :]
                which[i] = total.argmin(axis=1)
                least[i] = np.take_along_axis(total, which[i][:, None], axis=1)[:, 0]
            return least, which
        return self._side_by_side(way.ways, inner, at_a, at_b)

    def _side_by_side(
        self, ways: Sequence[_WayBetween], inner: Devices, at_a: Devices, at_b: Devices
    ) -> tuple[Floats, tuple[list[Division], Ints]]:
        """The least of all divisions, of which the first is none: everything on all devices."""
        divisions, tables = list(self._divisions(ways, inner)), []
        for number, division in enumerate(divisions):
            each = [self._table(_group(ways, some), on, at_a, at_b)[0] for some, on in division]
            idle = (self._table(way, inner, at_a, at_b)[0] for way in ways if not way.count)
            tables.append(sum(idle, np.maximum(*each)) if number else sum(each))
        stacked = np.stack(tables)
        return stacked.min(axis=0), (divisions, stacked.argmin(axis=0))

    def _divisions(self, ways: Sequence[_WayBetween], inner: Devices) -> Iterator[Division]:
        yield tuple(((i,), inner) for i in range(len(ways)))
        busy = [i for i, way in enumerate(ways) if way.count]
        if not self.split or len(busy) < 2 or len(inner) < 2 or not all(ways[i].directed for i in busy):
            return
        few = len(busy) <= BRANCHES
        for n in range(1, len(busy)) if few else (1, len(busy) // 2):
            for chosen in combinations(busy, n) if few else [tuple(busy[:n])]:
                rest = tuple(i for i in busy if i not in chosen)
                for k in _counts(inner, self.costed.machines.hosts):
                    yield (chosen, inner[:k]), (rest, inner[k:])

    def _unary(self, v: int, devices: Devices, hanging: _WayBetween | None, inner: Devices) -> Floats:
        """Seconds of every choice of a vertex, with what hangs on it."""
        own = self.costed.options(v, devices).seconds
        if v in self.fixed:
            own = np.where(np.arange(len(own)) == self.fixed[v], own, np.inf)
        return own if hanging is None else own + self._table(hanging, inner, (), devices)[0][0]

    def _picked(
        self, way: _WayBetween, inner: Devices, at_a: Devices, at_b: Devices, argument: Any, i: int, j: int
    ) -> dict[int, tuple[Devices, int]]:
        if way.kind == "link":
            return {}
        if way.kind == "turned":
            return self._table(way.ways[0], inner, at_b, at_a)[1](j, i)
        if way.kind == "beside":
            divisions, which = argument
            made: dict[int, tuple[Devices, int]] = {}
            for some, devices in divisions[which[i, j]]:
                made |= self._table(_group(way.ways, some), devices, at_a, at_b)[1](i, j)
            return made
        n = int(argument[i, j])
        made = {way.middle: (inner, n)} | self._table(way.ways[-1], inner, inner, at_b)[1](n, j)
        if way.hanging is not None:
            made |= self._table(way.hanging, inner, (), inner)[1](0, n)
        return made | (self._table(way.ways[0], inner, at_a, inner)[1](i, n) if len(way.ways) > 1 else {})

    # -- what is left: several vertices, each with three neighbours or more

    def _rest(
        self, ways: dict[tuple[int, int], _WayBetween], left: set[int]
    ) -> tuple[dict[int, tuple[Devices, int]], float]:
        every = self.devices
        tables: list[_OfVertices] = []
        for v in sorted(left):
            hanging = self.hanging.get(v)
            key = f"({self.costed.vertices[v].key}={self.fixed.get(v)}-{hanging.key if hanging else ''})"
            tables.append(_OfVertices((v,), self._unary(v, every, hanging, every), key))
        for (a, b), way in ways.items():
            forward = _towards(way, b)
            tables.append(_OfVertices((a, b), self._table(forward, every, every, every)[0], forward.key))
        numbers = self._eliminate(tables, set(left))
        picked = {v: (every, n) for v, n in numbers.items()}
        seconds = sum(float(each.seconds[tuple(numbers[v] for v in each.scope)]) for each in tables)
        for v, n in numbers.items():
            if v in self.hanging:
                picked |= self._table(self.hanging[v], every, (), every)[1](0, n)
        for (_, b), way in ways.items():
            own = _towards(way, b)
            picked |= self._table(own, every, every, every)[1](numbers[own.a], numbers[own.b])
        return picked, seconds

    def _eliminate(self, tables: Sequence[_OfVertices], left: set[int]) -> dict[int, int]:
        """The choice of each vertex, by tables over some of them each."""
        now = list(tables)
        order: list[tuple[int, tuple[int, ...], Ints]] = []
        picked: dict[int, int] = {}
        size = {v: len(self.costed.options(v, self.devices).choices) for v in left}
        while left:
            scopes = {v: {u for each in now if v in each.scope for u in each.scope} for v in sorted(left)}
            elements = {v: prod(size[u] for u in scope) for v, scope in scopes.items()}
            v = min(elements, key=elements.__getitem__)
            if elements[v] > LARGEST:
                u = max(sorted(left), key=lambda u: sum(u in each.scope for each in now))
                picked[u] = n = self._by_neighbours(u, now, size[u])
                self.loose.append(u)
                now = [each.at(u, n) for each in now]
                left.discard(u)
                continue
            own = [each for each in now if v in each.scope]
            now = [each for each in now if v not in each.scope]
            made, which = self._without(v, own, size)
            order.append((v, made.scope, which))
            now.append(made)
            left.discard(v)
        for v, scope, which in reversed(order):
            picked[v] = int(which[tuple(picked[u] for u in scope)])
        return picked

    def _without(
        self, v: int, own: Sequence[_OfVertices], size: Mapping[int, int]
    ) -> tuple[_OfVertices, Ints]:
        """The least over its choices, and which has it; of alike parts of graphs once."""
        scope = tuple(sorted({u for each in own for u in each.scope if u != v}))
        axes = (*scope, v)
        said = "+".join(sorted(f"{each.key}{[axes.index(u) for u in each.scope]}" for each in own))
        number = self.costed.number(f"least {said}")
        cache = self.costed.known.tables if self.cache else self.own
        key = number, self.devices, self.split
        if key not in cache:
            cache[key] = _least(own, axes, size)
        table, which = cache[key]
        return _OfVertices(scope, table, number), which

    @staticmethod
    def _by_neighbours(v: int, tables: Sequence[_OfVertices], size: int) -> int:
        total = np.zeros(size)
        for each in tables:
            if v in each.scope:
                axes = tuple(axis for axis, u in enumerate(each.scope) if u != v)
                total += each.seconds.min(axis=axes) if axes else each.seconds
        return int(total.argmin())


@dataclass(frozen=True, eq=False)
class _OfVertices:
    """Seconds by the choices of some vertices. `key`: without their names."""

    scope: tuple[int, ...]
    seconds: Floats
    key: str

    def at(self, v: int, n: int) -> _OfVertices:
        """Where a vertex has its choice of that number."""
        if v not in self.scope:
            return self
        axis = self.scope.index(v)
        rest = tuple(u for u in self.scope if u != v)
        return _OfVertices(rest, np.take(self.seconds, n, axis=axis), f"{self.key}@{axis}={n}")


def _least(
    tables: Sequence[_OfVertices], axes: tuple[int, ...], size: Mapping[int, int]
) -> tuple[Floats, Ints]:
    """The least of the sum of tables over the last of these vertices, and which it is; one of its choices
    after another, as all at once have no room in a cache."""
    turned = []
    for each in tables:
        order = sorted(range(len(each.scope)), key=lambda axis: axes.index(each.scope[axis]))
        shape = [size[u] if u in each.scope else 1 for u in axes]
        turned.append(np.moveaxis(np.transpose(each.seconds, order).reshape(shape), -1, 0))
    turned.sort(key=lambda table: table.size)
    shape = [size[u] for u in axes[:-1]]
    least, which = np.full(shape, np.inf), np.zeros(shape, np.int64)
    for n in range(size[axes[-1]]):
        total = turned[0][n if len(turned[0]) > 1 else 0]
        for table in turned[1:]:
            total = total + table[n if len(table) > 1 else 0]
        which[total < least] = n
        np.minimum(least, total, out=least)
    return least, which


def _pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def _before(way: _WayBetween, v: int) -> bool:
    """Whether it is directed, and begins at v."""
    return way.directed and way.a == v


def _towards(way: _WayBetween, b: int) -> _WayBetween:
    return way if way.b == b else way.ways[0] if way.kind == "turned" else way.turned()


def _joined(ways: Sequence[_WayBetween]) -> _WayBetween:
    """Side by side, all from the first's a to its b."""
    b = ways[0].b
    own = [_towards(way, b) for way in ways]
    if any(not way.directed for way in own) and all(_towards(way, ways[0].a).directed for way in ways):
        own = [_towards(way, ways[0].a) for way in ways]
    flat = [each for way in own for each in (way.ways if way.kind == "beside" else (way,))]
    key = "{" + " | ".join(way.key for way in flat) + "}"
    directed = all(way.directed for way in flat)
    count = sum(way.count for way in flat)
    return _WayBetween("beside", flat[0].a, flat[0].b, key, directed, ways=tuple(flat), count=count)


def _group(ways: Sequence[_WayBetween], some: tuple[int, ...]) -> _WayBetween:
    return ways[some[0]] if len(some) == 1 else _joined([ways[i] for i in some])


def _put_beside(ways: dict[tuple[int, int], _WayBetween], way: _WayBetween) -> None:
    pair = _pair(way.a, way.b)
    ways[pair] = _joined([ways[pair], way]) if pair in ways else way


def _counts(devices: Devices, hosts: Sequence[int]) -> list[int]:
    """Ints of devices for the first of two branches; of many whole hosts, or about quarters of them."""
    n = len(devices)
    if n <= 8:
        return list(range(1, n))
    host = sum(hosts[p] == hosts[devices[0]] for p in devices)
    step = host * -(-n // (4 * host))
    return sorted({*range(step, n, step), n // 2} - {n})
