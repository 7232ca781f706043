"""The line that fits a link, and the probe between real processes."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.cluster.probe import (
    BATCH,
    DEFAULT_SIZES,
    ENOUGH_S,
    SPENT_S,
    _End,
    _one_way,
    _probe_gpus,
    _probe_pair,
    fit_link,
    probe_links,
)
from netsplit.runtime.transport.process import ProcessTransport

LATENCIES = st.floats(1e-6, 1e-2)
RATES = st.floats(1e-11, 1e-7)


@settings(deadline=None)  # the first imports scipy
@given(LATENCIES, RATES)
def test_a_line_without_noise_is_found_exactly(latency_s: float, seconds_per_byte: float) -> None:
    link = fit_link([(n, latency_s + n * seconds_per_byte) for n in DEFAULT_SIZES])
    assert link.latency_s == pytest.approx(latency_s, rel=1e-6)
    assert link.seconds_per_byte == pytest.approx(seconds_per_byte, rel=1e-4)
    assert link.r_squared == pytest.approx(1.0, abs=1e-6)


def _worker(rank: int, folder: str, names: list[str], sizes: list[int]) -> None:
    store = dist.FileStore(f"{folder}/store", len(names))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(names))
    try:
        transport = ProcessTransport(dict.fromkeys(names, torch.device("cpu")), names[rank])
        samples = probe_links(transport, names[rank], names, "cpu", sizes, repeats=3)
        Path(folder, f"{rank}.pickle").write_bytes(pickle.dumps(samples))
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_workers_probe_every_ordered_pair_and_all_know_the_result(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    sizes = [64, 4096, 262144]
    mp.spawn(_worker, (str(tmp_path), names, sizes), nprocs=len(names))
    samples, *others = [
        pickle.loads((tmp_path / f"{rank}.pickle").read_bytes()) for rank in range(len(names))
    ]
    assert all(other == samples for other in others)
    assert set(samples) == {(p, q) for p in names for q in names if p != q}
    for points in samples.values():
        assert [nbytes for nbytes, _ in points] == sizes
        assert all(seconds > 0 for _, seconds in points)
        assert fit_link(points).seconds_per_byte >= 0


class _Stream:
    """A GPU's, of which the clock goes on by what is sent, and nothing else."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.now_s = 0.0
        self.sent: list[int] = []

    def send(self, tensor: torch.Tensor, peer: str, tag: int, watched: bool) -> _Stream:
        self.sent.append(tensor.numel())
        self.now_s += 1e-5 + tensor.numel() / self.bytes_per_s
        return self

    def wait(self, timeout_s: float) -> None:
        assert timeout_s > 0

    def event(self) -> Any:
        now_s = self.now_s
        return SimpleNamespace(now_s=now_s, elapsed_time=lambda stop: 1e3 * (stop.now_s - now_s))


@pytest.mark.parametrize(("bytes_per_s", "largest"), [(1e8, 2**20), (1e10, 2**27), (3e11, 2**28)])
def test_between_gpus_batches_are_timed_and_large_ones_go_over_quick_links_alone(
    monkeypatch: pytest.MonkeyPatch, bytes_per_s: float, largest: int
) -> None:
    stream = _Stream(bytes_per_s)
    monkeypatch.setattr(_End, "_event", lambda end: stream.event())
    end, least = _End(stream, torch.device("cpu"), 60.0, 2**28), dict[int, float]()  # type: ignore[arg-type]
    _probe_gpus(end, "b", DEFAULT_SIZES, least)
    assert max(least) == largest
    assert stream.now_s < 2
    assert stream.sent.count(64) == 2 * (1 + BATCH)
    link = fit_link(sorted(least.items()))
    assert (link.latency_s, link.bandwidth) == pytest.approx((1e-5, bytes_per_s))


class _SlowEnd:
    """Seconds of a link by rule, and what was asked of it."""

    def __init__(self, bytes_per_s: float, late_ack_s: float = 0.0) -> None:
        self.bytes_per_s = bytes_per_s
        self.late_ack_s = late_ack_s
        self.sent: list[int] = []

    def round_trip(self, nbytes: int, target: str) -> float:
        self.sent.append(nbytes)
        return 1e-3 + nbytes / self.bytes_per_s + self.late_ack_s

    def no_more(self, target: str) -> None:
        pass


@pytest.mark.parametrize("bytes_per_s", [1e5, 1e9])
def test_a_round_takes_seconds_on_a_slow_link_too(bytes_per_s: float) -> None:
    """At least two sizes are sent, and none that takes longer than the first to take a second."""
    end, least = _SlowEnd(bytes_per_s), dict[int, float]()
    _probe_pair(end, "b", DEFAULT_SIZES, 12, least)  # type: ignore[arg-type]
    assert sum(end.round_trip(n, "b") for n in tuple(end.sent)) < 2 * ENOUGH_S + len(DEFAULT_SIZES) * SPENT_S
    assert len(least) > 2
    assert fit_link(_one_way(least, DEFAULT_SIZES)).bandwidth == pytest.approx(bytes_per_s, rel=0.01)
