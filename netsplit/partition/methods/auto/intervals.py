"""Groups of nodes that follow one another, cut where little crosses; what is repeated is cut once.

    layer   layer   layer            nodes by operator, costs, sizes and how far back they read:
    a b c d a b c d a b c d  ──►     equal at a distance of 4: the cuts of one layer are those of all
      |   |   |   |   |   |

An interval of a topological order is convex, and the graph of intervals has no circle.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from netsplit.graph.order import topological_order
from netsplit.graph.quotient import strong_components, successors
from netsplit.partition.common.instance import Floats, Instance, Ints

__all__ = ["intervals", "repeated"]

_WINDOW = 8  # nodes in a row that must be equal, where a period is looked for
_MOSTLY = 0.5  # of all nodes are in what is repeated, else the graph is cut as a whole


def intervals(instance: Instance, target: int) -> tuple[list[list[int]], int]:
    """About `target` groups of nodes, at most, in topological order, and how many are repetitions of others.

    Units stay in one piece: groups that share one, and what lies between these, are one group.
    """
    crossing, work = _crossing_bytes(instance), (instance.forward_s + instance.backward_s).min(axis=1)
    first, last, period = repeated(_labels(instance))
    borders: list[int] = []
    again = 0
    if last - first >= _MOSTLY * instance.n:
        times = (last - first) // period
        room = target * (last - first) // instance.n
        together = -(-times // max(room, 1))  # repetitions in one piece, where there are very many
        width = together * period
        begin = first + int(crossing[first : first + period].argmin())
        own = _narrow(
            crossing[begin : begin + width], work[begin : begin + width], room * width // (last - first)
        )
        rounds = (last - begin) // width
        borders = [begin + i * width + cut for i in range(rounds) for cut in (0, *own)]
        borders.append(begin + rounds * width)
        again = (rounds - 1) * (1 + len(own))
        rest = max(2, target - len(borders))
        ends = [(0, begin), (begin + rounds * width, instance.n)]
    else:
        rest, ends = target, [(0, instance.n)]
    for a, b in ends:
        if a < b:
            borders += [
                a,
                *(a + cut for cut in _narrow(crossing[a:b], work[a:b], rest * (b - a) // instance.n)),
            ]
    number = np.zeros(instance.n, np.int64)
    number[sorted({border for border in borders if 0 < border < instance.n})] = 1
    return _acyclic(instance, np.cumsum(number)), again


def repeated(labels: Ints) -> tuple[int, int, int]:
    """The longest stretch of labels that is equal to itself at some distance: its begin, its end, and that
    distance; whole repetitions only. (0, 0, 1): there is none.
    """
    count = len(labels)
    if count < 2 * _WINDOW:
        return 0, 0, 1
    windows = np.lib.stride_tricks.sliding_window_view(labels, _WINDOW)
    _, kinds = np.unique(windows, axis=0, return_inverse=True)
    order = np.argsort(kinds.ravel(), kind="stable")
    same = np.diff(kinds.ravel()[order]) == 0
    distances = Counter(np.diff(order)[same].tolist())
    best = (0, 0, 1)
    for period, _ in distances.most_common(4):
        equal = np.concatenate([[False], labels[period:] == labels[:-period], [False]])
        ends = np.flatnonzero(np.diff(equal.astype(np.int8)))
        for begin, end in zip(ends[::2].tolist(), ends[1::2].tolist(), strict=True):
            length = (end - begin + period) // period * period
            if end - begin >= period and length > best[1] - best[0]:
                best = (begin, begin + length, period)
    return best


def _labels(instance: Instance) -> Ints:
    """[n] equal where nodes do the same on tensors of the same sizes, which come from as far back."""
    graph = instance.problem.graph
    seen: dict[tuple[Any, ...], int] = {}
    labels = np.zeros(instance.n, np.int64)
    for v, node in enumerate(graph):
        back = tuple(sorted(v - int(instance.producer[u]) for u in instance.reads[v]))
        sizes = tuple(graph.variables[k].nbytes for k in node.outputs if k)
        seconds = instance.forward_s[v].tobytes(), instance.backward_s[v].tobytes()
        key = (node.op, back, sizes, int(instance.state_bytes[v]), seconds)
        labels[v] = seen.setdefault(key, len(seen))
    return labels


def _crossing_bytes(instance: Instance) -> Ints:
    """[n] bytes of variables that are made before a node and read at it or later."""
    change = np.zeros(instance.n + 2, np.int64)
    for u, v in enumerate(instance.producer.tolist()):
        readers = instance.consumers[u]
        change[v + 1] += instance.nbytes[u]
        change[int(readers[-1]) + 1] -= instance.nbytes[u]
    return np.cumsum(change)[: instance.n]


def _narrow(crossing: Ints, work: Floats, count: int) -> list[int]:
    """Cuts into about `count` parts of like work, each moved by up to half a part to where least crosses."""
    total = np.cumsum(work)
    if count < 2 or len(work) < 2 or total[-1] <= 0:
        return []
    cuts: list[int] = []
    for i in range(1, min(count, len(work))):
        low, high = np.searchsorted(total, [(i - 0.5) * total[-1] / count, (i + 0.5) * total[-1] / count])
        low, high = max(int(low), 1), min(max(int(high), int(low) + 1), len(work))
        if low < high:
            cuts.append(low + int(crossing[low:high].argmin()))
    return sorted(set(cuts))


def _acyclic(instance: Instance, number: Ints) -> list[list[int]]:
    """The groups, joined where a unit lies in several."""
    count = int(number[-1]) + 1
    units: dict[int, set[int]] = {}
    for v, unit in enumerate(instance.unit_of.tolist()):
        units.setdefault(unit, set()).add(int(number[v]))
    ties = [(min(own), g) for own in units.values() if len(own) > 1 for g in own if g != min(own)]
    groups: list[list[int]] = [[] for _ in range(count)]
    if not ties:
        for v, g in enumerate(number.tolist()):
            groups[g].append(v)
        return groups
    pairs = {
        (int(number[instance.producer[u]]), int(number[v]))
        for u in range(len(instance.producer))
        for v in instance.consumers[u]
    }
    label = strong_components(count, [*pairs, *ties, *((b, a) for a, b in ties)])
    after = successors(max(label) + 1, ((label[a], label[b]) for a, b in pairs))
    rank = {each: i for i, each in enumerate(topological_order(after, int))}
    for v, g in enumerate(number.tolist()):
        groups[rank[label[g]]].append(v)
    return [group for group in groups if group]
