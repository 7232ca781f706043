"""Hosts and NICs: what a cluster says of them, and when messages wait for one another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.errors import ReshardError
from netsplit.reshard import Layout, Mesh, Network, UnitTask, network_of, plan_reshard
from netsplit.reshard.hops import Hop
from netsplit.reshard.plan import hop_times, least_seconds
from tests.reshard.carried import carry_out


def cluster_of(hosts: int, inside: Link, across: Link) -> Cluster:
    """Two devices a host."""
    devices = tuple(Device(f"d{i}", "cpu", 1, host=f"host {i // 2}") for i in range(2 * hosts))
    links = {
        (p.name, q.name): inside if p.host == q.host else across for p in devices for q in devices if p != q
    }
    return Cluster("hosts", devices, links)


TWO = Network.uniform({"A": ["a", "b"], "B": ["c", "d"]}, nic_bandwidth=10.0, inside_bandwidth=100.0)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (["ac", "bd"], [(0, 1), (1, 2)]),  # one NIC sends both
        (["ac", "ca"], [(0, 1), (0, 1)]),  # full duplex
        (["ab", "ac"], [(0, 0.1), (0, 1)]),  # inside beside across
        (["ab", "ad", "cd"], [(0, 0.1), (0, 1), (0, 0.1)]),
        (["ab", "ab"], [(0, 0.1), (0.1, 0.2)]),
    ],
)
def test_a_nic_does_one_thing_at_a_time_in_each_direction(
    pairs: list[str], expected: list[tuple[float, float]]
) -> None:
    """Ten bytes each, in their order."""
    hops = [Hop(0, source, target, 0, 10) for source, target in pairs]
    assert [pytest.approx(each) for each in hop_times(hops, 1, TWO)] == expected


def test_a_latency_keeps_only_its_own_pair_waiting() -> None:
    network = replace(TWO, nic_latency_s=0.5)
    hops = [Hop(0, *pair, 0, 10) for pair in ("ac", "ac", "bd")]
    assert hop_times(hops, 1, network) == [(0, 1.5), (1.5, 3), (2.5, 4)]


def test_a_hop_waits_for_what_brings_its_elements() -> None:
    hops = [Hop(0, "a", "c", 0, 10), Hop(0, "c", "d", 0, 10, (0,))]
    assert hop_times(hops, 1, TWO)[1] == pytest.approx((1.0, 1.1))


def test_a_cluster_s_nics_are_as_fast_as_the_links_that_leave_its_hosts() -> None:
    network = network_of(cluster_of(2, Link(1e-6, 1 / 8e9), Link(1e-4, 1e-9)))
    hosts = list(dict.fromkeys(network.host_of.values()))
    assert len(hosts) == 2
    assert [network.nic[host] for host in hosts] == pytest.approx([1e-9, 1e-9])
    assert [network.inside[host] for host in hosts] == pytest.approx([1 / 8e9, 1 / 8e9])
    assert (network.nic_latency_s, network.inside_latency_s) == (1e-4, 1e-6)


@pytest.mark.parametrize("bandwidth", [1e9, 3e9])
def test_a_plan_on_a_cluster(bandwidth: float) -> None:
    cluster = cluster_of(4, Link(0.0, 1 / 8e9), Link(0.0, 1 / bandwidth))
    names = [device.name for device in cluster.devices]
    layouts = Layout(Mesh(tuple(names[:4]), (2, 2)), "S0R"), Layout(Mesh(tuple(names[4:]), (2, 2)), "RS0")
    plan = plan_reshard(*layouts, (64, 64), 4, network_of(cluster))
    carry_out(plan)
    assert plan.bound_s == pytest.approx(64 * 64 * 4 / 2 / bandwidth)


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(ReshardError, match="host 'B' has no seconds per byte"):
        Network({"a": "B"}, {}, {})
    with pytest.raises(ReshardError, match="negative or infinite"):
        Network.uniform({"A": ["a"]}, nic_bandwidth=-1.0)


def test_the_bound_of_many_sets_of_hosts_is_that_of_those_that_are_chained() -> None:
    """Twelve hosts, neighbours of which share a slice of a byte: twelve bytes leave them all together."""
    hosts = {f"h{i}": [f"d{i}"] for i in range(12)} | {f"r{i}": [f"e{i}"] for i in range(12)}
    network = Network.uniform(hosts, nic_bandwidth=1.0)
    tasks = [UnitTask(((i, i + 1),), (f"d{i}", f"d{(i + 1) % 12}"), (f"e{i}",)) for i in range(12)]
    assert least_seconds(tasks, 1, network) == pytest.approx(1.0)
    assert least_seconds([replace(task, receivers=("e0",)) for task in tasks], 1, network) == pytest.approx(
        12.0
    )
    alone = [replace(task, senders=task.senders[:1] if i else ("d5",)) for i, task in enumerate(tasks)]
    assert least_seconds(alone, 1, network) == pytest.approx(2.0)
