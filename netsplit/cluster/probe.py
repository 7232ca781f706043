"""The link probe: packets of a range of sizes between workers, and the line that fits their seconds.

    source                 target
      │── packet, n bytes ──►│      round trip(n) = one way(n) + one way of an acknowledgement
      │◄─ ack, 1 byte ───────│      one way(n)    = round trip(n) - round trip(1) / 2

One clock reads both ends of a round trip. Unlike half a ping-pong with n bytes both ways, this keeps the
two directions of a link apart; only the latency of one byte is taken to be the same in both.
Source: NetSplit thesis, section 4.2.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from netsplit.cluster.cluster import Link

__all__ = ["DEFAULT_SIZES", "Carrier", "Samples", "fit_link", "probe_links", "probe_pair"]

Samples = list[tuple[int, float]]  # (bytes, seconds one way)

DEFAULT_SIZES = (64, *(2**power for power in range(10, 24)))  # 64 bytes, then 1 KiB to 8 MiB
ROUNDS = 3  # over all pairs, so that a slow minute does not fall on one of them
PAUSE_S = 1e-3  # before a packet: in a program most receivers have waited so long that they sleep
SMALLEST_S = 1e-7  # no transfer between processes is faster; keeps a weight finite


class Carrier(Protocol):
    """Moves a tensor to or from a rank, and returns once that is done."""

    def send(self, tensor: Tensor, rank: int) -> object: ...

    def receive(self, tensor: Tensor, rank: int) -> object: ...


class _ByGroup:
    """By the default process group."""

    def send(self, tensor: Tensor, rank: int) -> None:
        dist.send(tensor, rank)

    def receive(self, tensor: Tensor, rank: int) -> None:
        dist.recv(tensor, rank)


def fit_link(samples: Sequence[tuple[int, float]]) -> Link:
    """The link whose line is nearest to measured (bytes, seconds), by least squares of relative errors.

    Every sample weighs 1 / seconds². Sizes span four orders of magnitude and noise grows with the time
    it disturbs, so plain least squares would fit the largest packets alone, and the latency, which is
    all that counts for a small one, would be what is left over: often negative. A latency or a rate
    below zero is set to zero and the other fitted again. `r_squared` is the plain coefficient of
    determination of the seconds, within 0 and 1.

    Raises:
        ValueError: fewer than two different sizes.
    """
    if len({nbytes for nbytes, _ in samples}) < 2:
        raise ValueError(f"a link is fitted to packets of two sizes or more, not to {list(samples)}.")
    latency_s, seconds_per_byte = _line(samples)
    return Link(latency_s, seconds_per_byte, _r_squared(samples, latency_s, seconds_per_byte))


def probe_links(
    rank: int,
    device_names: Sequence[str],
    torch_device: torch.device | str,
    sizes: Sequence[int] = DEFAULT_SIZES,
    repeats: int = 30,
    carriers: Mapping[int, Carrier] | None = None,
) -> dict[tuple[str, str], Samples]:
    """Samples of every ordered pair of devices, one pair at a time while all others wait.

    Pairs take turns, several times: both directions of a link are measured under the same conditions. Of
    what a size took in all rounds the least counts.

    To be called by all workers of an initialised process group at once; each gets the whole result.

    Args:
        rank: of this worker.
        device_names: of all workers, in rank order.
        torch_device: this worker's; CUDA devices need the NCCL backend.
        carriers: to ranks that are not reached by the default process group, alike at both ends.
    """
    by_group = _ByGroup()
    device = torch.device(torch_device)
    mine: dict[tuple[str, str], Samples] = {}
    rounds = min(ROUNDS, repeats)
    for turn in range(rounds):
        times = repeats // rounds + (turn < repeats % rounds)
        for p, source in enumerate(device_names):
            for q, target in enumerate(device_names):
                if p != q:
                    dist.barrier()
                    carrier = (carriers or {}).get(q if rank == p else p, by_group)
                    points = probe_pair(rank, p, q, sizes, times, device, carrier=carrier)
                    if rank == p:
                        mine[source, target] = _least(points, mine.get((source, target), points))
    gathered: list[dict[tuple[str, str], Samples] | None] = [None] * len(device_names)
    dist.all_gather_object(gathered, mine)
    return {pair: points for part in gathered if part is not None for pair, points in part.items()}


def probe_pair(
    rank: int,
    source: int,
    target: int,
    sizes: Sequence[int] = DEFAULT_SIZES,
    repeats: int = 30,
    device: torch.device | str = "cpu",
    warmup: int = 2,
    carrier: Carrier | None = None,
) -> Samples:
    """One-way seconds of packets from rank `source` to rank `target`.

    The least of a size's repeats is its answer: whatever disturbs a packet makes it late, and where the
    processors are busy most packets wait for milliseconds. Every repeat goes through all sizes, so that
    one disturbance cannot spoil all packets of a size.
    To be called by both ranks; on the target, and on any other rank, the answer is empty.
    """
    if rank not in (source, target):
        return []
    sizes = sorted({int(nbytes) for nbytes in sizes})
    if not sizes or sizes[0] < 1 or repeats < 1:
        raise ValueError(
            f"sizes={sizes}, repeats={repeats}: give sizes of at least 1 byte, and 1 repeat or more."
        )
    carrier = carrier or _ByGroup()
    packet = torch.zeros(sizes[-1], dtype=torch.uint8, device=device)
    ack = torch.zeros(1, dtype=torch.uint8, device=device)
    round_trips: list[list[float]] = [[] for _ in (1, *sizes)]
    for _ in range(warmup + repeats):
        for seconds, nbytes in zip(round_trips, (1, *sizes), strict=True):
            if rank == source:
                seconds.append(_round_trip(carrier, packet[:nbytes], ack, target))
            else:
                _answer(carrier, packet[:nbytes], ack, source)
    if rank == target:
        return []
    ack_s, *seconds_of = [min(seconds[warmup:]) for seconds in round_trips]
    return [(n, max(s, ack_s) - ack_s / 2) for n, s in zip(sizes, seconds_of, strict=True)]


def _least(points: Samples, others: Samples) -> Samples:
    return [(nbytes, min(mine, other)) for (nbytes, mine), (_, other) in zip(points, others, strict=True)]


def _round_trip(carrier: Carrier, packet: Tensor, ack: Tensor, target: int) -> float:
    _finish(packet)
    start = time.perf_counter() + PAUSE_S
    while time.perf_counter() < start:
        pass
    carrier.send(packet, target)
    carrier.receive(ack, target)
    _finish(packet)
    return time.perf_counter() - start


def _answer(carrier: Carrier, packet: Tensor, ack: Tensor, source: int) -> None:
    carrier.receive(packet, source)
    carrier.send(ack, source)
    _finish(packet)


def _finish(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _line(samples: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Latency and seconds per byte, neither below zero."""
    weighted = [(max(seconds, SMALLEST_S) ** -2, nbytes, seconds) for nbytes, seconds in samples]
    total = sum(w for w, _, _ in weighted)
    mean_bytes = sum(w * n for w, n, _ in weighted) / total
    mean_s = sum(w * s for w, _, s in weighted) / total
    spread = sum(w * (n - mean_bytes) ** 2 for w, n, _ in weighted)
    slope = sum(w * (n - mean_bytes) * (s - mean_s) for w, n, s in weighted) / spread
    if slope < 0:
        return max(mean_s, 0.0), 0.0
    latency_s = mean_s - slope * mean_bytes
    if latency_s < 0:
        through_zero = sum(w * n * s for w, n, s in weighted) / sum(w * n * n for w, n, _ in weighted)
        return 0.0, max(through_zero, 0.0)
    return latency_s, slope


def _r_squared(samples: Sequence[tuple[int, float]], latency_s: float, seconds_per_byte: float) -> float:
    mean_s = sum(seconds for _, seconds in samples) / len(samples)
    variance = sum((seconds - mean_s) ** 2 for _, seconds in samples)
    if variance == 0:
        return 1.0
    residual = sum((s - latency_s - n * seconds_per_byte) ** 2 for n, s in samples)
    return min(max(1.0 - residual / variance, 0.0), 1.0)
