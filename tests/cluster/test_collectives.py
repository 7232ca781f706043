"""Seconds of collectives against published tables of nccl-tests."""

from __future__ import annotations

import pytest

from netsplit.cluster.collectives import collective_seconds

NVSWITCH = {1: 27.7, 2: 40.7, 4: 53.2, 8: 81.2, 16: 121.3, 32: 195.4}
"""MiB -> microseconds of an all-reduce of 8 GPUs (github.com/kvcache-ai/Mooncake, pull request 3484)."""
TWO_HOSTS = {4: 103.1, 8: 157.1, 16: 244.7, 32: 432.4, 64: 825.4, 128: 1493.1, 256: 2946.6}
"""The same of 2 x 4 GPUs over NICs that reach 40 GB/s each (github.com/NVIDIA/nccl, issue 1411)."""


def test_all_reduces_are_as_published() -> None:
    for mib, microseconds in NVSWITCH.items():
        assert collective_seconds("all_reduce", mib * 2**20, 8, 370e9) * 1e6 == pytest.approx(
            microseconds, rel=0.3
        )
    for mib, microseconds in TWO_HOSTS.items():
        assert collective_seconds("all_reduce", mib * 2**20, 8, 370e9, 2, 40e9) * 1e6 == pytest.approx(
            microseconds, rel=0.1
        )


def test_a_sum_is_a_scatter_and_a_gather() -> None:
    summed = collective_seconds("all_reduce", 1e9, 16, 370e9, 2, 47e9)
    parts = [collective_seconds(kind, 1e9, 16, 370e9, 2, 47e9) for kind in ("reduce_scatter", "all_gather")]
    assert summed == pytest.approx(sum(parts), rel=0.01)
    assert collective_seconds("all_gather", 1e9, 1, 370e9) == 0.0


def test_one_rank_a_host_has_one_network_card() -> None:
    alone = collective_seconds("all_gather", 1e9, 4, 370e9, 4, 47e9)
    beside = collective_seconds("all_gather", 1e9, 32, 370e9, 4, 47e9)
    assert alone > 5 * beside
