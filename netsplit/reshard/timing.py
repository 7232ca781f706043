"""When every hop begins and ends: one walk over the hops, in their order.

    NIC of A, out     ├ hop 0 ┤├ hop 1 ┤          a hop between hosts holds the sending NIC and the
    NIC of B, in      ├ hop 0 ┤        ├ hop 2 ┤  receiving one; one inside a host, what its two devices
    NIC of C, in               ├ hop 1 ┤          send and receive by
    NIC of C, out                      ├ hop 2 ┤  (hop 2 waits for hop 1, which brings what it sends)

NICs and devices are held while the bytes pass. A message's latency comes after that, and only messages
between the same two devices wait for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from netsplit.reshard.hops import Hop
from netsplit.reshard.network import Network

__all__ = ["hop_times"]


def hop_times(hops: Sequence[Hop], itemsize: int, network: Network) -> list[tuple[float, float]]:
    """Seconds from the beginning at which each hop starts and ends.

    What a NIC or a device sends goes in the order of the hops, and so does what it receives.
    """
    free: dict[Hashable, float] = {}
    times: list[tuple[float, float]] = []
    for hop in hops:
        a, b = network.host_of[hop.source], network.host_of[hop.destination]
        out, into = (
            ((a, "out"), (b, "in")) if a != b else ((hop.source, a, "out"), (hop.destination, a, "in"))
        )
        pair = hop.source, hop.destination
        start = max(
            *(free.get(each, 0.0) for each in (out, into, ("pair", *pair))), *(times[i][1] for i in hop.after)
        )
        end = start + network.seconds((hop.stop - hop.start) * itemsize, *pair)
        free[out] = free[into] = end - network.seconds(0, *pair)
        free["pair", *pair] = end
        times.append((start, end))
    return times
