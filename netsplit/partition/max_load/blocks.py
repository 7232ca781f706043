"""Proofs that no placement has all loads within T: prices at which no blocks of load <= T cover everything.

An answer with all loads <= T is a partition of the groups into one block a device, each with a load
<= T. For any prices pi of groups the blocks hold at most the sum over devices of
``P_d = max {pi(S): load_d(S) <= T}``. If that is less than pi of all groups, T cannot be had. The prices
are the duals of the covering by blocks (Dantzig and Wolfe), found by column generation, and smoothed
towards the best ones so far (Wentges, ITOR 1997): prices of the covering alone jump.

Each block looks at one device, so there is no symmetry between devices to break: Archer et al., ICML
2024, section 5, bound the bottleneck block for that reason; the prices make it hold for all at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import highspy
import numpy as np
from numpy.typing import NDArray

from netsplit.partition.instance import Floats, Ints
from netsplit.partition.max_load.bounds import BlockModel, quiet
from netsplit.partition.max_load.model import Hypergraph

__all__ = ["Blocks", "excluded"]

_SMOOTHING = 0.85  # weight of the best prices so far
_MANY = 16  # blocks of one pricing
_LABELS = 6e6  # of one pricing at first; and what memory allows
_LABELS_MOST = 3e7
_PROVEN = 1e-6  # relative: sums of prices may be off by less


class _Pricer(Protocol):
    def most(self, prices: Floats, floor: float, labels: float) -> tuple[float, list[Ints], bool]: ...


@dataclass
class _ByFrontier:
    """`Frontier.most` with a number of labels for the whole automaton."""

    frontier: object
    limit: float

    def most(self, prices: Floats, floor: float, labels: float) -> tuple[float, list[Ints], bool]:
        each = max(50, int(labels / self.frontier.width.sum()))
        return self.frontier.most(prices, self.limit, floor, each, _MANY)
