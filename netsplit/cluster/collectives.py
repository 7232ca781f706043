"""Seconds of the collectives of NCCL, from the terms of its own cost model.

    seconds = min over protocols of   start + steps · latency of a step + bytes moved / (bandwidth · part)

A ring of r ranks takes r - 1 steps to gather or to scatter sums, twice as many to sum everywhere. Latencies
and parts are those by which NCCL chooses a protocol (github.com/NVIDIA/nccl, src/graph/tuning.cc).
Compared with published tables of nccl-tests in docs/published.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CollectiveName", "collective_seconds"]

CollectiveName = Literal["all_reduce", "all_gather", "reduce_scatter", "send"]


@dataclass(frozen=True)
class _Protocol:
    start_s: float
    inside_s: float  # of a step over NVLink
    between_s: float  # of a step over a network
    reached: float  # of the bandwidth


_PROTOCOLS = (
    _Protocol(6.6e-6, 0.6e-6, 2.7e-6, 0.25),  # LL: a flag beside every four bytes
    _Protocol(14.0e-6, 1.9e-6, 4.0e-6, 0.92),  # LL128: a flag in every 128 bytes
    _Protocol(8.4e-6, 3.4e-6, 14.0e-6, 1.0),  # Simple
)


def collective_seconds(
    kind: CollectiveName,
    nbytes: float,
    ranks: int,
    inside: float,
    hosts: int = 1,
    between: float = float("inf"),
) -> float:
    """Seconds of one collective that has its links to itself.

    Args:
        kind: "send" goes from one rank to another, on another host if `hosts` is above 1.
        nbytes: of the whole tensor: the sum, what is gathered, or what is scattered.
        ranks: of the group; 1 takes no time.
        inside: bytes per second of a rank within its host.
        hosts: that the group is spread over evenly.
        between: bytes per second of a rank to other hosts; ranks of one host add theirs up.
    """
    if ranks < 2 or nbytes <= 0:
        return 0.0
    if kind == "send":
        steps, times, bandwidth = 1, 1.0, inside if hosts == 1 else min(inside, between)
    else:
        rounds = 2 if kind == "all_reduce" else 1
        steps, times = rounds * (ranks - 1), rounds * (ranks - 1) / ranks
        bandwidth = inside if hosts == 1 else min(inside, between * ranks / hosts)
    crossing = steps * (hosts - 1) // (ranks - 1) if hosts > 1 else 0
    return min(
        each.start_s
        + (steps - crossing) * each.inside_s
        + crossing * each.between_s
        + nbytes * times / (bandwidth * each.reached)
        for each in _PROTOCOLS
    )
