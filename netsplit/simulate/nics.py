"""What transfers between hosts wait for: each direction of a host's NIC takes one at a time.

    host A   d0 ──┐             ┌──► d4   host B       d0→d4  ▒▒▒▒▒▒▒▒ready first
             d1 ──┴─out─────in──┴──► d5                d1→d5          ▒▒▒▒▒▒▒▒

A transfer between hosts begins as soon as both of its ends have come to it and its link and the NICs that it
goes through are free; of several that could, the first by tag. It holds the NICs for its bytes: not for the
link's latency. One that waits for a NIC keeps no other from those that are free. A sum holds the NICs of its
ring for all the bytes that go through them.
"""

from __future__ import annotations

from collections.abc import Sequence

from netsplit.cluster.cluster import Cluster

__all__ = ["NicQueues"]


class NicQueues:
    """When each direction of each NIC is free."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.free: dict[tuple[str, str], float] = {}

    def free_at(self, links: Sequence[tuple[str, str]]) -> float | None:
        """When all NICs are free that these links go through; None: they go through none."""
        if not self.cluster.nics:
            return None
        ways = [nic for link in links for nic, _ in self.cluster.way(*link)]
        return max((self.free.get(nic, 0.0) for nic in ways), default=None)

    def hold(self, links: Sequence[tuple[str, str]], start: float, nbytes: float) -> None:
        """From its start on, for the bytes that go over each of the links; which leave a host once."""
        if self.cluster.nics:
            for link in links:
                for nic, pace in self.cluster.way(*link):
                    self.free[nic] = start + nbytes * pace
