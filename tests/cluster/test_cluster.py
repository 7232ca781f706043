"""A cluster's links as arrays."""

from netsplit.cluster.cluster import Link
from tests.builders import cluster_of


def test_link_costs_are_those_of_the_links_by_rank_and_zero_elsewhere():
    cluster = cluster_of([1, 1, 1])
    links = {("d0", "d1"): Link(0.5, 0.25), ("d2", "d0"): Link(2.0, 4.0)}
    latency_s, seconds_per_byte = cluster.with_links(links).link_costs
    assert latency_s.tolist() == [[0, 0.5, 0], [0, 0, 0], [2, 0, 0]]
    assert seconds_per_byte.tolist() == [[0, 0.25, 0], [0, 0, 0], [4, 0, 0]]
