"""The link probe: packets of a range of sizes between workers, and the line that fits their seconds.

    source                 target
      │── n ────────────────►│
      │── packet, n bytes ──►│      round trip(n) = one way(n) + one way of an acknowledgement
      │◄─ ack, 1 byte ───────│      one way(n)    = round trip(n) - round trip(1) / 2

One clock times the whole round trip; only one byte's latency is assumed equal in both directions.
Source: NetSplit thesis, section 4.2.

Between GPUs packets of one size go in a batch, behind a first that says that the target is ready; events in
the source's stream tell the seconds of all, one way.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from itertools import permutations
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from netsplit.cluster.cluster import Link

__all__ = ["DEFAULT_SIZES", "Mover", "Samples", "fit_link", "probe_links"]

Samples = list[tuple[int, float]]  # (bytes, seconds one way)

DEFAULT_SIZES = (64, *(2**power for power in range(10, 24)))  # 64 bytes, then 1 KiB to 8 MiB
LARGE_SIZES = tuple(2**power for power in range(24, 29))  # 16 to 256 MiB, between GPUs
QUICK_S = 1e-2  # seconds of a packet between GPUs that stop larger ones
BATCH, BATCH_BYTES = 16, 2**25  # packets in a batch, and bytes of more than one
ROUNDS = 3  # rounds over all pairs, to spread a slow minute
WARMUP = 2  # warm-up packets of a size in every round
SPENT_S = 0.25  # seconds per size and round, so that slow links take seconds, too
ENOUGH_S = 1.0  # seconds of a packet that stop larger ones
PAUSE_S = 1e-3  # pause before a packet, as most receivers in a program sleep
SMALLEST_S = 1e-7  # no transfer between processes is faster; keeps a weight finite


class _Moving(Protocol):
    def wait(self, timeout_s: float) -> Tensor: ...


class Mover(Protocol):
    """What moves tensors between devices, as the runtime's transport does."""

    def send(self, tensor: Tensor, peer: str, tag: int, watched: bool) -> _Moving: ...

    def receive(self, buffer: Tensor, peer: str, tag: int) -> _Moving: ...


def fit_link(samples: Sequence[tuple[int, float]]) -> Link:
    """The link that fits measured (bytes, seconds) by least squares of relative errors, without negative
    values."""
    from scipy.optimize import nnls

    nbytes, seconds = np.array(samples, float).T
    weights, unit = 1.0 / np.maximum(seconds, SMALLEST_S), nbytes.max()
    (latency_s, slope), _ = nnls(np.column_stack((weights, weights * nbytes / unit)), weights * seconds)
    variance, residual = seconds.var(), np.square(seconds - latency_s - nbytes / unit * slope).mean()
    r_squared = float(np.clip(1.0 - residual / variance, 0.0, 1.0)) if variance else 1.0
    return Link(float(latency_s), float(slope / unit), r_squared)


def probe_links(
    mover: Mover,
    name: str,
    device_names: Sequence[str],
    torch_device: torch.device | str,
    sizes: Sequence[int] = DEFAULT_SIZES,
    repeats: int = 30,
    timeout_s: float = 60.0,
    gpus: Collection[str] = (),
) -> dict[tuple[str, str], Samples]:
    """Samples of every ordered pair of devices, one pair at a time while all others wait.

    Pairs take turns, several times; the least of what a size took counts. To be called by all workers of an
    initialised process group at once; each gets the whole result.

    Args:
        name: of this worker's device, `device_names` of all, in rank order.
        timeout_s: of one packet.
        gpus: devices that reach one another without the host's memory: packets go in batches there, also
            large ones.
    """
    sizes = sorted({int(nbytes) for nbytes in sizes})
    largest = max(*LARGE_SIZES, sizes[-1]) if name in gpus and len(gpus) > 1 else sizes[-1]
    end = _End(mover, torch.device(torch_device), timeout_s, largest)
    trips: dict[tuple[str, str], dict[int, float]] = {}
    rounds = min(ROUNDS, repeats)
    for turn in range(rounds):
        times = WARMUP + repeats // rounds + (turn < repeats % rounds)
        for source, target in permutations(device_names, 2):
            dist.barrier()
            batches = source in gpus and target in gpus
            if name == source and batches:
                _probe_gpus(end, target, sizes, trips.setdefault((source, target), {}))
            elif name == source:
                _probe_pair(end, target, sizes, times, trips.setdefault((source, target), {}))
            elif name == target:
                end.answer(source, batches)
    if name in gpus:
        del end
        torch.cuda.empty_cache()  # of the packet
    mine = {
        pair: sorted(least.items()) if {*pair} <= {*gpus} else _one_way(least, sizes)
        for pair, least in trips.items()
    }
    gathered: list[dict[tuple[str, str], Samples] | None] = [None] * len(device_names)
    dist.all_gather_object(gathered, mine)
    return {pair: points for part in gathered if part is not None for pair, points in part.items()}


def _probe_pair(end: _End, target: str, sizes: Sequence[int], times: int, least: dict[int, float]) -> None:
    """One round of packets to `target`; `least` keeps the shortest seconds there and back by size."""
    spent_s = dict.fromkeys((1, *sizes), 0.0)
    for walk in range(times):
        for nbytes in list(spent_s):
            if spent_s[nbytes] > SPENT_S:
                continue
            seconds = end.round_trip(nbytes, target)
            spent_s[nbytes] += seconds
            if walk >= WARMUP or spent_s[nbytes] > SPENT_S:
                least[nbytes] = min(seconds, least.get(nbytes, seconds))
            if seconds > ENOUGH_S and nbytes > sizes[0]:
                spent_s = {each: spent for each, spent in spent_s.items() if each <= nbytes}
                break
    end.no_more(target)


def _probe_gpus(end: _End, target: str, sizes: Sequence[int], least: dict[int, float]) -> None:
    """One round of batches; `least` keeps the shortest seconds of a packet one way by size."""
    for nbytes in sorted({*sizes, *LARGE_SIZES}):
        end.batch_seconds(nbytes, target)
        seconds = end.batch_seconds(nbytes, target)
        least[nbytes] = min(seconds, least.get(nbytes, seconds))
        if seconds > QUICK_S and len(least) > 1:
            break
    end.no_more(target)


def _packets(nbytes: int) -> int:
    return max(1, min(BATCH, BATCH_BYTES // nbytes))


def _one_way(least: dict[int, float], sizes: Sequence[int]) -> Samples:
    """Seconds one way by size, from round trips."""
    ack_s = least[1]
    return [(n, max(least[n], ack_s) - ack_s / 2) for n in sizes if n in least]


class _End:
    """This worker's end of the links."""

    def __init__(self, mover: Mover, device: torch.device, timeout_s: float, largest: int) -> None:
        self.mover = mover
        self.timeout_s = timeout_s
        self.packet = torch.zeros(largest, dtype=torch.uint8, device=device)
        self.ack = torch.zeros(1, dtype=torch.uint8, device=device)
        self.size = torch.zeros(1, dtype=torch.int64, device=device)

    def round_trip(self, nbytes: int, target: str) -> float:
        """Seconds of a packet there and an acknowledgement back; the target learns its size first."""
        self._send(self.size.fill_(nbytes), target)
        self._finish()
        start = time.perf_counter() + PAUSE_S
        while time.perf_counter() < start:
            pass
        self._send(self.packet[:nbytes], target)
        self._receive(self.ack, target)
        return time.perf_counter() - start

    def batch_seconds(self, nbytes: int, target: str) -> float:
        """Seconds of each packet of a batch by the GPU's clock, after one that does not count."""
        self._send(self.size.fill_(nbytes), target)
        self._send(self.packet[:nbytes], target)
        start = self._event()
        packet, count = self.packet[:nbytes], _packets(nbytes)
        for under_way in [self.mover.send(packet, target, 0, False) for _ in range(count)]:
            under_way.wait(self.timeout_s)
        stop = self._event()
        self._finish()
        return float(start.elapsed_time(stop)) / 1e3 / count

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.packet.device))
        return event

    def no_more(self, target: str) -> None:
        self._send(self.size.fill_(0), target)

    def answer(self, source: str, batches: bool) -> None:
        """Take packets until there are no more: acknowledge each, or receive a batch at once."""
        while True:
            self._receive(self.size, source)
            if (nbytes := int(self.size)) == 0:
                return
            packet = self.packet[:nbytes]
            if batches:
                count = 1 + _packets(nbytes)
                for under_way in [self.mover.receive(packet, source, 0) for _ in range(count)]:
                    under_way.wait(self.timeout_s)
            else:
                self._receive(packet, source)
                self._send(self.ack, source)

    def _send(self, tensor: Tensor, peer: str) -> None:
        self.mover.send(tensor, peer, 0, False).wait(self.timeout_s)

    def _receive(self, buffer: Tensor, peer: str) -> None:
        self.mover.receive(buffer, peer, 0).wait(self.timeout_s)
        self._finish()

    def _finish(self) -> None:
        if self.packet.is_cuda:
            torch.cuda.synchronize(self.packet.device)
