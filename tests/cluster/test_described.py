"""Clusters that are described: levels, speeds, fractions of memory, and one sentence for each mistake."""

from typing import Any

import pytest

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.cluster.described import (
    DescribedDevice,
    DescribedHost,
    DescribedLink,
    LinkCost,
    described_cluster,
    uniform_cluster,
)
from netsplit.errors import ConfigError
from tests.builders import cluster_of


def test_uniform_devices_have_one_link_between_any_two() -> None:
    cluster = uniform_cluster(3, 1e9, "16GB", latency=2e-5).cluster("gpu", 0)
    assert [(d.name, d.kind, d.capacity_bytes) for d in cluster.devices] == [
        (f"d{i}", "gpu", 16_000_000_000) for i in range(3)
    ]
    assert len(cluster.links) == 6
    assert set(cluster.links.values()) == {Link(2e-5, 1e-9)}
    assert cluster.levels == ((3, 1e9),)


def test_levels_are_innermost_first() -> None:
    cluster = uniform_cluster([2, 3], [12e9, "1.25GB/s"], 1e9, latency=[0, 1e-5]).cluster("gpu", 0)
    assert len(cluster.devices) == 6
    assert cluster.levels == ((2, 12e9), (3, 1.25e9))
    assert cluster.links["d0", "d1"] == cluster.links["d3", "d2"] == Link(0.0, 1 / 12e9)
    assert cluster.links["d1", "d2"] == cluster.links["d5", "d0"] == Link(1e-5, 1 / 1.25e9)


def test_a_machine_has_all_levels_of_devices_where_nodes_are_given() -> None:
    rates = {"bandwidth": [9e9, 4e9, 1e9], "capacity": 1e9}
    cluster = uniform_cluster([3, 2], nodes=2, **rates).cluster("gpu", 0)
    assert cluster.levels == ((3, 9e9), (2, 4e9), (2, 1e9))
    assert cluster.links["d2", "d3"].bandwidth == pytest.approx(4e9)
    assert [nic.devices for nic in cluster.nics] == [tuple(f"d{i + j}" for i in range(6)) for j in (0, 6)]
    one = uniform_cluster([3, 2], nodes=1, **rates).cluster("gpu", 0)
    assert one.levels == ((3, 9e9), (2, 4e9))
    assert one.nics == ()


def test_described_devices_have_a_kind_per_speed_and_groups_their_own_links() -> None:
    devices = [
        DescribedDevice("a", 1.0, "50%"),
        DescribedDevice("b", 1.0, 10),
        DescribedDevice("c", 0.5, "1KiB"),
    ]
    description = described_cluster("mix", devices, LinkCost("1GB", 1e-5), [DescribedLink(["a", "b"], 4e9)])
    cluster = description.cluster("gpu", 100)
    assert [d.kind for d in cluster.devices] == ["gpu", "gpu", "gpu x0.5"]
    assert [d.capacity_bytes for d in cluster.devices] == [50, 10, 1024]
    assert cluster.links["a", "b"] == cluster.links["b", "a"] == Link(0.0, 1 / 4e9)
    assert cluster.links["a", "c"] == cluster.links["c", "b"] == Link(1e-5, 1e-9)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": 0}, ["cluster.devices is 0"]),
        ({"bandwidth": 0}, ["cluster.bandwidth is 0"]),
        ({"bandwidth": "fast"}, ["cluster.bandwidth is 'fast'", "12GB"]),
        ({"bandwidth": [1e9, 1e9]}, ["cluster.bandwidth has 2 entries", "1 levels"]),
        ({"nodes": 0}, ["cluster.nodes is 0"]),
        ({"nodes": 2000}, ["cluster.devices is 4 in 2000 nodes, 8000 devices in all"]),
        ({"capacity": "x%"}, ["cluster.capacity is 'x%'", "40%"]),
        ({"capacity": None}, ["cluster.capacity=16GB", "cluster.model='TITAN RTX'"]),
        ({"nic": "1GB"}, ["cluster.nic is '1GB'", "one machine"]),
    ],
)
def test_a_value_that_makes_no_sense_is_named_by_its_key(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        uniform_cluster(**{"devices": 4, "bandwidth": 1e9, "capacity": 16e9} | changes)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def hosted(hosts: list[DescribedHost]) -> Cluster:
    names = ["a", "b", "c", "d", "e"]
    links = [DescribedLink(["a", "b"], 9e9), DescribedLink(["c", "e"], 2e9)]
    devices = [DescribedDevice(name) for name in names]
    return described_cluster("x", devices, LinkCost(1e9), links, hosts=hosts).cluster("cpu", 1)


def test_hosts_share_a_nic_as_fast_as_the_fastest_link_out_of_them_or_as_said() -> None:
    cluster = hosted([DescribedHost("one", ["a", "b"]), DescribedHost("two", ["c", "d"], nic="4GB")])
    one, two = cluster.nics
    assert (one.host, one.devices, one.out_s_per_byte, one.in_s_per_byte) == ("one", ("a", "b"), 1e-9, 1e-9)
    assert (two.devices, two.out_s_per_byte) == (("c", "d"), 0.25e-9)
    assert [cluster.nic(name) for name in "abcde"] == [one, one, two, two, None]
    assert cluster.way("a", "b") == ()
    assert cluster.way("b", "c") == ((("one", "out"), 1e-9), (("two", "in"), 0.25e-9))
    assert cluster.way("e", "d") == ((("two", "in"), 0.25e-9),)


def test_only_devices_of_known_models_are_planned_without_a_profile() -> None:
    uniform_cluster(2, 1e9, model="TITAN RTX").require_models()
    with pytest.raises(ConfigError, match=r"^cluster 'plain' gives only .* cluster=titan_rtx3 "):
        uniform_cluster(2, 1e9, 1, name="plain").require_models()


def test_a_pair_without_a_link_is_named() -> None:
    devices = (Device("a", "gpu", 1), Device("b", "gpu", 1))
    with pytest.raises(ConfigError, match="no link from 'b' to 'a'"):
        Cluster("x", devices, {("a", "b"): Link(0.0, 0.0)}).check_links()
    with pytest.raises(ConfigError, match="from 'a' to 'b' has latency nan"):
        Cluster("x", devices, {("a", "b"): Link(float("nan"), 0.0)}).check_links()


def test_link_costs_are_those_of_the_links_by_rank_and_zero_elsewhere():
    cluster = cluster_of([1, 1, 1])
    links = {("d0", "d1"): Link(0.5, 0.25), ("d2", "d0"): Link(2.0, 4.0)}
    latency_s, seconds_per_byte = cluster.with_links(links).link_costs
    assert latency_s.tolist() == [[0, 0.5, 0], [0, 0, 0], [2, 0, 0]]
    assert seconds_per_byte.tolist() == [[0, 0.25, 0], [0, 0, 0], [4, 0, 0]]
