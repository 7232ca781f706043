"""Baechi's m-TOPO on examples worked out by hand."""

import pytest

from netsplit.errors import ConfigError
from netsplit.partition import MTopo, Problem
from netsplit.partition.methods.baechi.baechi import footprints
from tests.builders import chain, cluster_of, costs_of, graph_of


def devices(graph, capacities) -> str:
    """The device numbers of the nodes, in order."""
    placement = MTopo().partition(Problem(graph, costs_of(graph), cluster_of(capacities)))
    return "".join(placement.device_of[name][1:] for name in graph.nodes)


def test_a_footprint_is_the_state_and_the_living_copies_of_outputs_and_inputs_count_at_their_first_consumer():
    graph = graph_of("abc", [("", 7, "bc"), ("a", 10, "bc"), ("b", 4, "c")], {"a": 5, "c": 1})
    problem = Problem(graph, costs_of(graph, alpha=3), cluster_of([1000]), in_flight=2)
    assert footprints(problem) == {"a": 15 + 30, "b": 21 + 12, "c": 3}


def test_a_chain_is_cut_where_the_cap_is_exceeded():
    """Footprints 30, 20, 40, 30: the cap is 120 // 2 + 40 = 100, and 30 + 20 + 40 <= 100 < 120."""
    graph = chain([10, 10, 10], weights={"n0": 5, "n2": 10, "n3": 15})
    assert devices(graph, [1000, 1000]) == "0001"


@pytest.mark.parametrize(
    ("colocated", "answer"),
    [
        ((), "0001"),  # 40 + 40 + 40 <= 120: a single node may reach the cap
        (["bc"], "0111"),  # 40 + 80 < 120 fails: a colocated set may not
        (["bd"], "0111"),  # b brings d along, and c is refused the device that was left
    ],
)
def test_a_node_may_reach_the_cap_and_a_colocated_set_may_not(colocated, answer):
    """Four nodes of 40 bytes on two devices: the cap is 160 // 2 + 40 = 120."""
    graph = graph_of("abcd", [], dict.fromkeys("abcd", 20), colocated)
    assert devices(graph, [1000, 1000]) == answer


def test_a_small_device_is_filled_and_the_others_share_the_rest_evenly():
    graph = graph_of("abcdef", [], dict.fromkeys("abcdef", 20))
    assert devices(graph, [40, 1000, 1000]) == "011122"  # level 100, cap 140


def test_the_order_of_baechis_code_fills_the_devices_level_by_level():
    """Captured b, c before d; first ready first is b, d before c. Nodes of 40 bytes, cap 120."""
    graph = graph_of("abcd", [("a", 0, "bd"), ("b", 0, "c")], dict.fromkeys("abcd", 20))
    problem = Problem(graph, costs_of(graph), cluster_of([1000, 1000]))
    moved = {
        order: next(v for v, d in MTopo(order).partition(problem).device_of.items() if d == "d1")
        for order in ("captured", "breadth_first")
    }
    assert moved == {"captured": "d", "breadth_first": "c"}
    with pytest.raises(ConfigError, match=r"m_topo\.order"):
        MTopo("depth_first")
