"""Pesto's coarsening: every merge keeps a DAG, nothing is lost, colocated nodes stay in one class."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.partition import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.pesto.coarsen import coarsen, heights, mergeable_batch
from tests.builders import chain, cluster_of, costs_of
from tests.examples import tried
from tests.partition.builders import large_problem, problems, required_bytes

examples = settings(max_examples=tried(80), deadline=None, suppress_health_check=list(HealthCheck))
PLENTY = 10**12

dags = st.integers(2, 9).flatmap(
    lambda n: st.dictionaries(
        st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] < e[1]),
        st.integers(0, 9),
        min_size=1,
        max_size=24,
    )
)


def paths(edges, u, v):
    """How many paths lead from u to v."""
    return 1 if u == v else sum(paths(edges, w, v) for s, w in edges if s == u)


def is_acyclic(edges):
    edges, vertices = set(edges), {v for edge in edges for v in edge}
    while vertices:
        roots = vertices - {v for _, v in edges}
        if not roots:
            return False
        vertices -= roots
        edges = {(u, v) for u, v in edges if u not in roots}
    return True


def merged(edges, batch):
    one = {v: {v} for edge in edges for v in edge}
    for u, v in batch:
        union = one[u] | one[v]
        one.update(dict.fromkeys(union, union))
    both = {(min(one[u]), min(one[v])) for u, v in edges}
    return {(u, v) for u, v in both if u != v}


@examples
@given(edges=dags)
def test_an_edge_of_a_batch_is_the_only_path_between_its_ends(edges):
    for u, v in mergeable_batch(edges, 100):
        assert paths(edges, u, v) == 1


@examples
@given(edges=dags)
def test_a_batch_has_no_vertex_twice_and_leaves_a_dag(edges):
    batch = mergeable_batch(edges, 100)
    ends = [v for edge in batch for v in edge]
    assert len(ends) == len(set(ends))
    assert is_acyclic(merged(edges, batch))


def test_a_star_is_merged_in_one_round_where_that_is_allowed():
    out_of_hub = {(0, leaf): leaf for leaf in range(1, 9)}
    into_hub = {(leaf, 9): leaf for leaf in range(10, 15)}
    assert len(mergeable_batch(out_of_hub | into_hub, 100)) == 2
    assert len(mergeable_batch(out_of_hub | into_hub, 100, stars=True)) == 8 + 5


def test_the_heaviest_edge_goes_first_unless_another_path_forbids_it():
    """0 -> 2 has the most bytes, but 0 -> 1 -> 2 would become a cycle."""
    edges = {(0, 1): 1, (1, 2): 2, (0, 2): 9}
    assert mergeable_batch(edges, 9) == [(1, 2)]


def test_the_condition_on_heights_allows_what_degrees_do_not():
    """u has two successors and v two predecessors, but w is above v, so no path comes down to it."""
    u, r, v, w = range(4)
    edges = {(u, v): 9, (r, v): 1, (u, w): 1, (v, w): 1}
    assert heights(edges) == [0, 0, 1, 2]
    assert mergeable_batch(edges, 1) == [(u, v)]


@examples
@given(problem=problems(), target=st.integers(1, 8))
def test_a_coarse_graph_is_in_order_and_has_every_node_and_variable_once(problem, target):
    instance = Instance.of(problem)
    coarse = coarsen(instance, target, PLENTY)
    assert sorted(v for members in coarse.vertices for v in members) == list(range(instance.n))
    assert sorted(v for members in coarse.classes for v in members) == list(range(instance.n))
    vertex = {v: i for i, members in enumerate(coarse.vertices) for v in members}
    expected: dict[tuple[int, int], set[int]] = {}
    for k, u in enumerate(instance.producer):
        for w in instance.consumers[k]:
            if vertex[u] != vertex[w]:
                expected.setdefault((vertex[u], vertex[w]), set()).add(k)
    assert {edge: set(members) for edge, members in coarse.variables.items()} == expected
    assert all(u < v for u, v in coarse.variables)
    for v, members in enumerate(coarse.vertices):
        assert set(members) <= set(coarse.classes[coarse.class_of[v]])


@examples
@given(problem=problems(), target=st.integers(1, 8))
def test_an_atom_is_never_divided_among_classes(problem, target):
    instance = Instance.of(problem)
    coarse = coarsen(instance, target, PLENTY)
    class_of = {v: g for g, members in enumerate(coarse.classes) for v in members}
    for atom in range(len(instance.atoms)):
        assert len({class_of[v] for v in instance.atoms[atom]}) == 1


def test_colocated_ends_of_a_chain_share_a_class_but_not_a_vertex():
    """One vertex of both would be before and after the middle."""
    graph = chain([1, 1], colocated=[["n0", "n2"]])
    instance = Instance.of(Problem(graph, costs_of(graph), cluster_of([99, 99])))
    coarse = coarsen(instance, 3, PLENTY)
    assert coarse.vertices == ((0,), (1,), (2,))
    assert coarse.class_of == (0, 1, 0)


def test_a_chain_reaches_its_target_exactly_and_keeps_all_seconds():
    problem = large_problem(200)
    instance = Instance.of(problem)
    coarse = coarsen(instance, 30, PLENTY)
    assert len(coarse.vertices) == 30
    sums = [instance.forward_s[list(members)].sum(axis=0) for members in coarse.vertices]
    assert np.sum(sums, axis=0) == pytest.approx(instance.forward_s.sum(axis=0))


def test_no_class_grows_beyond_the_bytes_allowed():
    problem = large_problem(100)
    instance, limit = Instance.of(problem), required_bytes(problem) // 5
    coarse = coarsen(instance, 1, limit)
    assert len(coarse.vertices) > 5
    for members in coarse.classes:
        where = np.ones(instance.n, np.int64)
        where[list(members)] = 0
        assert instance.used_bytes(where)[0] <= limit
