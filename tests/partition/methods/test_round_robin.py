"""`round_robin` deals atoms in turn."""

from netsplit.partition import Problem
from netsplit.partition.methods.round_robin import RoundRobin
from tests.builders import chain, cluster_of, costs_of


def test_nodes_go_to_the_devices_in_turn():
    graph = chain([1, 1, 1, 1])
    placement = RoundRobin().partition(Problem(graph, costs_of(graph), cluster_of([1, 1])))
    assert list(placement.device_of.values()) == ["d0", "d1", "d0", "d1", "d0"]


def test_a_colocated_set_is_one_turn():
    graph = chain([1, 1, 1], colocated=[["n0", "n2"]])
    placement = RoundRobin().partition(Problem(graph, costs_of(graph), cluster_of([1, 1, 1])))
    assert placement.device_of == {"n0": "d0", "n1": "d1", "n2": "d0", "n3": "d2"}
