"""The order in which operators run where nothing enforces one: as they become ready, first in, first out.

FlexFlow's simulator and TensorFlow's executor take operators from a queue of ready ones so; FastT's order
enforcement (Yi et al., Middleware 2020, section 6.3) is compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from netsplit.partition.common.instance import Instance

__all__ = ["fifo_starts"]


def fifo_starts(instance: Instance, where: Sequence[int]) -> dict[str, float]:
    """Node -> seconds at which its forward starts, where each device runs what is ready in order of arrival.

    A node is ready when the last message that it waits for has come; of nodes that become ready at once the
    first captured goes first. A message takes latency + bytes * seconds a byte and waits for no other.

    Args:
        where: [n] device of each node.
    """
    n = instance.n
    missing = [len(instance.predecessors[v]) for v in range(n)]
    ready = [0.0] * n
    start = [0.0] * n
    running = [-1] * len(instance.devices)
    queues: list[list[tuple[float, int]]] = [
        [] for _ in instance.devices
    ]  # seconds at which it was ready, node
    events: list[tuple[float, int, int]] = []  # seconds, node, device that it ends on; -1: it is ready
    for v in range(n):
        if not missing[v]:
            heappush(events, (0.0, v, -1))

    now = 0.0
    touched: set[int] = set()
    while touched or events:
        if not touched:
            now = events[0][0]
        while events and events[0][0] == now:
            _, v, p = heappop(events)
            if p < 0:
                heappush(queues[where[v]], (now, v))
                touched.add(where[v])
                continue
            running[p] = -1
            touched.add(p)
            for w, came in _messages(instance, v, where, now).items():
                ready[w] = max(ready[w], came)
                missing[w] -= 1
                if not missing[w]:
                    heappush(events, (ready[w], w, -1))
        # One start at a time: an operator of no seconds may make another ready at this very moment.
        touched = {p for p in touched if running[p] < 0 and queues[p]}
        if touched:
            p = min(touched, key=lambda q: queues[q][0])
            _, v = heappop(queues[p])
            running[p] = v
            start[v] = now
            heappush(events, (now + float(instance.forward_s[v, p]), v, p))
    return dict(zip(instance.names, start, strict=True))


def _messages(instance: Instance, v: int, where: Sequence[int], now: float) -> dict[int, float]:
    """Readers of what a node makes, and when all of it has come to them."""
    came = dict.fromkeys(instance.successors[v].tolist(), now)
    p = where[v]
    for k in instance.makes[v].tolist():
        for w in instance.consumers[k].tolist():
            q = where[w]
            if q != p:
                seconds = instance.latency_s[p, q] + instance.nbytes[k] * instance.seconds_per_byte[p, q]
                came[w] = max(came[w], now + float(seconds))
    return came
