"""Clusters of hundreds of devices: links by level, and groups of devices by one of each."""

from __future__ import annotations

import time

import pytest

from netsplit.cluster.cluster import Link
from netsplit.cluster.collectives import collective_seconds
from netsplit.cluster.described import ClusterDescription, uniform_cluster
from netsplit.cluster.folded import folded_cluster


def hosts(count: int, nic: float | str = "auto", **given: str) -> ClusterDescription:
    return uniform_cluster([8, count], [300e9, 25e9], latency=[1e-6, 2e-6], capacity=1, nic=nic, **given)  # type: ignore[arg-type]


def test_links_are_kept_by_level() -> None:
    described = hosts(512)
    links = described.links
    assert links["d0", "d7"] == Link(1e-6, 1 / 300e9)
    assert links["d7", "d8"] == links["d4095", "d0"] == Link(2e-6, 1 / 25e9)
    assert len(links) == 4096 * 4095
    assert ("d3", "d3") not in links
    began = time.perf_counter()
    assert described.cluster("cpu", 1).size == 4096
    assert time.perf_counter() - began < 2
    assert dict(hosts(2).links) == {(p, q): hosts(2).links[p, q] for p, q in hosts(2).links}


def test_groups_on_all_hosts_share_the_nics() -> None:
    cluster = hosts(2).cluster("cpu", 1)
    pair = ["d0", "d8"]
    alone, shared = (cluster.group_seconds("all_gather", 1e9, pair, every) for every in (False, True))
    assert alone == pytest.approx(2e-6 + 5e8 / 25e9)
    assert shared == pytest.approx(2e-6 + 8 * 5e8 / 25e9)
    wide = hosts(2, nic=200e9).cluster("cpu", 1)
    assert wide.group_seconds("all_gather", 1e9, pair, True) == pytest.approx(alone)
    nccl = hosts(2, nic=200e9, collectives="nccl").cluster("cpu", 1)
    group = ["d0", "d1", "d8", "d9"]
    seconds = collective_seconds("all_reduce", 1e9, 4, 300e9, 2, 25e9)
    assert nccl.group_seconds("all_reduce", 1e9, group) == pytest.approx(seconds)


def test_a_device_stands_for_those_of_its_host() -> None:
    cluster = hosts(2).cluster("cpu", 1)
    folded = folded_cluster(cluster, ["d0", "d8"])
    assert (folded.names, folded.size) == (["d0", "d8"], 16)
    assert folded.links["d0", "d8"].seconds_per_byte == pytest.approx(8 / 25e9)
    assert folded.nic("d0") is not None
    folded.check_links()
    assert folded.group_seconds("all_gather", 1e9, ["d0", "d8"]) == cluster.group_seconds(
        "all_gather", 1e9, ["d0", "d8"], every=True
    )
    within = folded_cluster(cluster, ["d0", "d4"])
    assert within.links["d0", "d4"] == cluster.links["d0", "d4"]
