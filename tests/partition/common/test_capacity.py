"""The sentence of an infeasible problem."""

import pytest

from netsplit.errors import InfeasibleError
from netsplit.partition import MTopo, NetSplit, Problem
from netsplit.partition.partitioner import read_bytes
from tests.builders import cluster_of, costs_of, graph_of
from tests.messages import tells

heeding = pytest.mark.parametrize("method", [NetSplit(engine="highs"), MTopo()], ids=lambda m: m.name)


def message(method, weights, capacities, colocated=()) -> str:
    """Nodes without tensors: each needs twice its weight (alpha = 2)."""
    graph = graph_of(list(weights), [], weights, colocated)
    with pytest.raises(InfeasibleError) as caught:
        method.partition(Problem(graph, costs_of(graph), cluster_of(capacities)))
    return str(caught.value)


@heeding
def test_more_than_all_devices_have_is_missing_in_total(method):
    text = message(method, {"a": 10, "b": 10, "c": 10}, [20, 20])
    assert tells(text, method.name, "'test'")
    assert tells(text, "60 bytes", "40 bytes", "20 bytes are missing in total")
    assert tells(text, "40 bytes on each device")


@heeding
def test_a_colocated_set_above_the_largest_device_is_named_with_what_it_lacks(method):
    text = message(method, {"a": 10, "b": 10}, [30, 35], colocated=["ab"])
    assert tells(text, "'a', 'b'", "40 bytes", "5 bytes are missing", "'d1'", "5 bytes more")


@heeding
def test_one_node_above_the_largest_device_is_named(method):
    text = message(method, {"a": 20}, [30, 30])
    assert tells(text, "node 'a'", "40 bytes", "10 bytes are missing", "'d0'")


@heeding
def test_a_total_that_fits_but_cannot_be_packed_is_missing_on_a_device(method):
    text = message(method, {"a": 3, "b": 3, "c": 3}, [10, 10])
    assert tells(text, "12 bytes", "'d0'", "10 bytes", "2 bytes are missing", "12 bytes on each device")


def test_bytes_are_printed_for_people_and_exactly():
    assert read_bytes(1023) == "1023 bytes"
    assert read_bytes(1536) == "1536 bytes"
    assert read_bytes(3 << 30) == "3072 MiB (3221225472 bytes)"
