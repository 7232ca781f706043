"""Devices that may change places without a difference to what is asked of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from netsplit.graph.quotient import DisjointSets
from netsplit.partition.common.instance import Instance

__all__ = ["interchangeable", "interchangeable_devices"]


def interchangeable(own: Sequence[Hashable], tables: Sequence[NDArray[np.generic]] = ()) -> list[list[int]]:
    """Sets of devices any two of which may be exchanged, by their first; a device like no other is alone.

    Exchanges compose: where p with q and q with r change nothing, p with r does not either.

    Args:
        own: [D] all that is known of each device alone.
        tables: [D, D] each, what is known of pairs of devices.
    """
    sets = DisjointSets(len(own))
    for q in range(len(own)):
        for p in range(q):
            if sets.find(p) == p and own[p] == own[q]:
                swap = np.arange(len(own))
                swap[[p, q]] = q, p
                if all(np.array_equal(table, table[np.ix_(swap, swap)]) for table in tables):
                    sets.merge(p, q)
                    break
    return sets.sets()


def interchangeable_devices(instance: Instance) -> list[list[int]]:
    """The sets by seconds of every node, bytes and links."""
    columns = np.concatenate((instance.forward_s, instance.backward_s, instance.step_s))
    own = [(int(c), columns[:, p].tobytes()) for p, c in enumerate(instance.capacity)]
    return interchangeable(own, (instance.latency_s, instance.seconds_per_byte))
