"""Orders of the groups on whose way few nets are open, for the dynamic programme of `dynamic`.

Its states before step i are what can be told of the nets with pins on both sides of i. A net of which one
pin has come says no more than whether that group is in the column, and all such nets of one group say the
same; a net of which more have come is one of none, all and some. So there are at most
``2 ^ (groups that are the only pin of an open net) * 3 ^ (other open nets)`` states.

An order need not be topological. In one that is, sources that are read late come early and wait, and so do
forward nodes for their backward ones; here each comes beside what it is connected to.
"""

from __future__ import annotations

import random

import numpy as np

from netsplit.partition.common.instance import Ints
from netsplit.partition.max_load.model import Hypergraph

__all__ = ["expected_states", "narrowest"]

_TRIES = 24  # greedy orders
_MOST = 500.0  # bits that are told apart from more


def narrowest(model: Hypergraph, device: int, orders: list[Ints]) -> Ints:
    """The order [G] of fewest states, of some that are known and a few greedy ones."""
    nets = [model.pins[e].tolist() for e in np.flatnonzero(model.hop[:, device] > 0).tolist()]
    draw = random.Random(0)
    greedy = [_greedy(model.count, nets, draw) for _ in range(_TRIES if nets else 1)]
    return min([*orders, *greedy], key=lambda order: expected_states(order, nets))


def expected_states(order: Ints, nets: list[list[int]]) -> float:
    """At most so many states, of all steps together."""
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    bits = np.zeros(len(order) + 1)
    alone = rank.copy()  # [G] until when the group is the only pin of an open net
    for pins in nets:  # of two groups or more
        first, *rest = sorted(rank[pins].tolist())
        alone[order[first]] = max(alone[order[first]], rest[0])
        bits[rest[0]] += np.log2(3)
        bits[rest[-1]] -= np.log2(3)
    np.add.at(bits, rank, 1.0)
    np.add.at(bits, alone, -1.0)
    return float(np.exp2(np.minimum(np.cumsum(bits), _MOST)).sum())


def _greedy(count: int, nets: list[list[int]], draw: random.Random) -> Ints:
    """From any group on: next is a neighbour that opens fewest nets more than it closes.

    Of those alike, one of the net that is open for longest.
    """
    nets_of: list[list[int]] = [[] for _ in range(count)]
    for e, pins in enumerate(nets):
        for g in pins:
            nets_of[g].append(e)
    left = [len(pins) for pins in nets]
    since: dict[int, int] = {}
    luck = [draw.random() for _ in range(count)]

    def rank(g: int) -> tuple[int, int, float]:
        opened = sum(e not in since for e in nets_of[g])
        closed = sum(left[e] == 1 for e in nets_of[g])
        return opened - closed, min((since[e] for e in nets_of[g] if e in since), default=count), luck[g]

    order: list[int] = []
    beside: set[int] = set()
    ahead = set(range(count))
    while ahead:
        g = min(beside or ahead, key=rank) if order else draw.randrange(count)
        ahead.discard(g)
        order.append(g)
        for e in nets_of[g]:
            since.setdefault(e, len(order))
            left[e] -= 1
            beside.update(nets[e])
        beside &= ahead
    return np.array(order, np.int64)
