"""Devices that may change places without a difference to what is asked of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

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
            first = sets.find(p) == p and own[p] == own[q]
            if first and all(_alike(table, p, q) for table in tables):
                sets.merge(p, q)
                break
    return sets.sets()


def _alike(table: NDArray[np.generic], p: int, q: int) -> bool:
    """Whether it is the same with p and q exchanged."""
    swap = np.arange(len(table))
    swap[[p, q]] = q, p
    return np.array_equal(table[p], table[q, swap]) and np.array_equal(table[:, p], table[swap, q])


def interchangeable_devices(instance: Instance) -> list[list[int]]:
    """The sets by seconds of all they do, bytes, links, hosts and NICs."""
    columns, host = np.concatenate((instance.forward_s, instance.backward_s)), instance.device.host
    paces = [() if n < 0 else tuple(instance.device.nic_per_byte[:, n].tolist()) for n in instance.device.nic]
    own = [
        (
            int(c), columns[:, p].tobytes(), instance.device.slowdown[p].tobytes(),
            replace(instance.on[p], nodes={}), paces[p],
        )
        for p, c in enumerate(instance.capacity)
    ]  # fmt: skip
    shared = [(each[:, None] == each) & (each >= 0) for each in (host, instance.device.nic)]
    return interchangeable(
        [repr(each) for each in own], (instance.latency_s, instance.seconds_per_byte, *shared)
    )
