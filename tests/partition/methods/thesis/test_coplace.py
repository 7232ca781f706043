"""Algorithm 3 of the thesis."""

from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.graph.quotient import atoms_of
from netsplit.partition import Problem
from netsplit.partition.methods.thesis.netsplit import coplace
from netsplit.profile.memory import memory_of
from tests.builders import chain, cluster_of, costs_of
from tests.partition.builders import problems


def grouped(graph, least, capacities=(10_000, 10_000), group_bytes="union"):
    groups = coplace(Problem(graph, costs_of(graph), cluster_of(capacities)), least, group_bytes)
    return [" ".join(group) for group in groups]


def test_edges_merge_from_the_largest_down_to_the_floor():
    graph = chain([30, 10, 40, 20])
    assert grouped(graph, 5) == ["n0", "n1", "n2", "n3", "n4"]
    assert grouped(graph, 4) == ["n0", "n1", "n2 n3", "n4"]
    assert grouped(graph, 3) == ["n0 n1", "n2 n3", "n4"]
    assert grouped(graph, 2) == ["n0 n1", "n2 n3 n4"]
    assert grouped(graph, 1) == ["n0 n1 n2 n3 n4"]


def test_a_union_above_the_smallest_capacity_is_skipped_and_the_next_edge_tried():
    """n0 needs 80 of state and 2 * 30 of variables, n1 80 and 2 * 30 + 2 * 10, n2 2 and 2 * 10.

    A variable counts once in a group: 240 bytes for n0 and n1, 242 for all.
    """
    graph = chain([30, 10], weights={"n0": 40, "n1": 40, "n2": 1})
    assert grouped(graph, 1, (242, 10_000)) == ["n0 n1 n2"]
    assert grouped(graph, 1, (241, 10_000)) == ["n0 n1", "n2"]
    assert grouped(graph, 1, (240, 10_000)) == ["n0 n1", "n2"]
    assert grouped(graph, 1, (239, 10_000)) == ["n0", "n1 n2"]


def test_added_bytes_count_a_variable_at_both_ends_of_a_merged_edge():
    """As above: 140 and 160 bytes are 300, and 22 more 322."""
    graph = chain([30, 10], weights={"n0": 40, "n1": 40, "n2": 1})
    assert grouped(graph, 1, (322, 10_000), "added") == ["n0 n1 n2"]
    assert grouped(graph, 1, (321, 10_000), "added") == ["n0 n1", "n2"]
    assert grouped(graph, 1, (300, 10_000), "added") == ["n0 n1", "n2"]
    assert grouped(graph, 1, (299, 10_000), "added") == ["n0", "n1 n2"]


def test_colocated_nodes_start_merged_even_without_an_edge_or_room():
    graph = chain([8, 8, 8], colocated=[("n0", "n2")])
    assert grouped(graph, 3) == ["n0 n2", "n1", "n3"]
    assert grouped(graph, 1, (1, 1)) == ["n0 n2", "n1", "n3"]


@settings(deadline=None)
@given(problem=problems(max_nodes=12), group_bytes=st.sampled_from(["union", "added"]))
def test_groups_partition_the_nodes_and_merged_ones_fit_the_smallest_device(problem, group_bytes):
    graph = problem.graph
    groups, atoms = coplace(problem, 2, group_bytes), atoms_of(graph)
    assert sorted(name for group in groups for name in group) == sorted(graph.nodes)
    limit = min(device.capacity_bytes for device in problem.cluster.devices)
    for group in groups:
        need = memory_of(graph, group, problem.costs.alpha, problem.copies)
        assert group in atoms or need <= limit
