"""Pesto's coarsening: every merge keeps a DAG, nothing is lost, colocated nodes stay in one class."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.pesto.coarsen import coarsen
from tests.examples import tried
from tests.partition.builders import large_problem, problems, required_bytes

examples = settings(max_examples=tried(80), deadline=None, suppress_health_check=list(HealthCheck))
PLENTY = 10**12


def paths(edges, u, v):
    """How many paths lead from u to v."""
    return 1 if u == v else sum(paths(edges, w, v) for s, w in edges if s == u)


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
