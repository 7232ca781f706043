"""Which groups of devices may be stages: how many devices, in which order, with how many replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from netsplit.partition.base import Problem
from netsplit.planning.whole.lines.stages import Group

__all__ = ["groupings", "orders_of_devices"]

EVERY = 8  # devices, up to which every number of them is looked at


def orders_of_devices(problem: Problem, count: int) -> list[tuple[int, ...]]:
    """Orders of the best `count` devices: as the cluster has them, and by speed where they are unlike.

    Best are the fastest on the whole graph; of equally fast ones the roomiest, then the first.
    """
    devices, costs = problem.cluster.devices, problem.costs
    kinds = {device.kind for device in devices}
    seconds = {kind: sum(costs.total_s(v, kind) for v in problem.graph.nodes) for kind in kinds}
    ranks = range(len(devices))
    fast = sorted(ranks, key=lambda q: (seconds[devices[q].kind], -devices[q].capacity_bytes, q))[:count]
    roomy = sorted(ranks, key=lambda q: (-devices[q].capacity_bytes, seconds[devices[q].kind], q))[:count]
    orders = [sorted(fast), fast, fast[::-1], sorted(roomy), roomy]
    return list(dict.fromkeys(map(tuple, orders)))


def device_counts(devices: int) -> list[int]:
    """Numbers of devices to use: all, one, and those between from most to least, beyond eight only some."""
    between = list(range(devices - 1, 1, -1))
    if devices > EVERY:
        powers = {2**i for i in range(1, devices.bit_length())}
        between = sorted({devices - 1, 3 * devices // 4, *powers} - {devices}, reverse=True)
    return list(dict.fromkeys([devices, 1, *between]))


def groupings(order: Sequence[int], replicas: bool) -> Iterator[tuple[Group, ...]]:
    """Runs of the devices in order as stages: all in one, one each, and all numbers in between; two each.

    Where the devices do not divide into the stages, the first stages, or the last, have one more.
    """
    n = len(order)
    single = tuple((q,) for q in order)
    for p in range(1, n + 1) if n <= EVERY else _divisors(n):
        if p < n and not replicas:
            continue
        more = n % p
        sizes = [n // p + (g < more) for g in range(p)]
        for each in dict.fromkeys((tuple(sizes), tuple(reversed(sizes)))):
            ends = np.cumsum(each)
            yield tuple(tuple(order[end - size : end]) for end, size in zip(ends, each, strict=True))
    if n > 1:  # over the devices and back, and twice over them
        yield (*single, *reversed(single))
        yield (*single, *single)


def _divisors(n: int) -> list[int]:
    return [p for p in range(1, n + 1) if n % p == 0]
