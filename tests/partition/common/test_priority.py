from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.partition.common.priority import topological_priority
from tests.builders import graph_of
from tests.partition.builders import problems


def order(rank: dict[str, int]) -> str:
    return "".join(sorted(rank, key=rank.__getitem__))


def test_the_ready_node_with_the_least_key_comes_first_and_ties_go_to_captured_order():
    graph = graph_of("abcd", [("a", 1, "d")])
    assert order(topological_priority(graph, {"a": 5, "b": 1, "c": 1, "d": 0})) == "bcad"


def test_a_unit_stays_in_one_piece_and_in_captured_order():
    """Node d writes in place what c reads: c must run before it, though its key is larger."""
    graph = graph_of("abcd", [("a", 1, "cd"), ("b", 1, "c")], units=["acd"])
    assert order(topological_priority(graph, {"a": 0, "b": 3, "c": 9, "d": 1})) == "bacd"


@settings(deadline=None)
@given(problem=problems(max_nodes=12), data=st.data())
def test_any_key_gives_a_topological_order(problem, data):
    graph = problem.graph
    rank = topological_priority(graph, {name: data.draw(st.integers(0, 3)) for name in graph.nodes})
    assert sorted(rank.values()) == list(range(len(graph)))
    assert all(rank[u] < rank[v] for u, v, _ in graph.edges)
