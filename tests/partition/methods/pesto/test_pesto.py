"""Pesto: the least forward makespan of all placements; its coarsening; with exclusivity, brute force."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.errors import InfeasibleError
from netsplit.graph.quotient import atoms_of
from netsplit.partition import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.engines.placement_model import PlacementModel, Solved
from netsplit.partition.methods.pesto.pesto_full import PestoFull
from netsplit.partition.methods.pesto.tasks import coarsen
from netsplit.partition.methods.thesis.netsplit import Pesto
from netsplit.profile.costs import NodeSeconds
from tests.builders import cluster_of, costs_of, graph_of
from tests.examples import tried
from tests.partition.builders import large_problem, problems, required_bytes
from tests.partition.every_placement import assert_best_of_all, fitting

EXACT = {"gap": 0.0, "groups": 1000}
examples = settings(max_examples=tried(24), deadline=None, suppress_health_check=list(HealthCheck))


def forward_path(problem, device_of):
    """The longest path through the forward graph, transfers included."""
    graph, cluster = problem.graph, problem.cluster
    sent: dict[tuple[str, str], int] = {}
    for u, v, k in graph.edges:
        sent[u, v] = sent.get((u, v), 0) + graph.variables[k].nbytes
    end: dict[str, float] = {}
    for v in graph.nodes:
        arrivals = [
            end[u] + cluster.transfer_seconds(size, device_of[u], device_of[v])
            for (u, w), size in sent.items()
            if w == v
        ]
        end[v] = max(arrivals, default=0.0) + problem.costs.forward_s(v, cluster.device(device_of[v]).kind)
    return max(end.values())


@examples
@given(problem=problems(max_nodes=4))
def test_without_coplacement_the_objective_is_that_of_the_best_of_all_placements(problem):
    assert_best_of_all(Pesto(engine="highs", **EXACT), problem, forward_path)


def test_backward_seconds_change_nothing():
    """n1 runs forward faster on the second device and backward a hundred times slower."""
    graph = graph_of("ab", [("a", 1, "b"), ("b", 1, "")])
    costs = costs_of(graph, kinds=("cpu", "gpu"))
    costs = costs.with_device("gpu", nodes=dict.fromkeys("ab", NodeSeconds(0.5, 100.0)))
    problem = Problem(graph, costs, cluster_of([999, 999], kinds=["cpu", "gpu"]))
    placement = Pesto(engine="highs", **EXACT).partition(problem)
    assert set(placement.device_of.values()) == {"d1"}
    assert placement.report.objective == pytest.approx(1.0)


coarse_examples = settings(max_examples=tried(80), deadline=None, suppress_health_check=list(HealthCheck))
PLENTY = 10**12


def paths(edges, u, v):
    """How many paths lead from u to v."""
    return 1 if u == v else sum(paths(edges, w, v) for s, w in edges if s == u)


@coarse_examples
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


FULL = {"gap": 0.0, "target": 1000}
full_examples = settings(max_examples=tried(40), deadline=None, suppress_health_check=list(HealthCheck))


def trained(graph):
    """The same graph with a gradient through every tensor."""
    variables = {k: replace(v, requires_grad=True) for k, v in graph.variables.items()}
    return replace(graph, variables=variables)


def trained_problems(**limits):
    """Half of them with a backward pass."""
    every = problems(**limits)
    return every | every.map(lambda problem: replace(problem, graph=trained(problem.graph)))


def operations(problem, device_of):
    """Operations of a training step, as (seconds, resource), and the pairs that must follow each other."""
    graph, costs, cluster = problem.graph, problem.costs, problem.cluster
    backward = {v.name for v in graph if any(k in graph.requires_backward for k in v.outputs)}
    ops, arcs = {}, set()
    for v in graph.nodes:
        kind = cluster.device(device_of[v]).kind
        ops["f", v] = costs.forward_s(v, kind), device_of[v]
        if v in backward:
            ops["b", v] = costs.backward_s(v, kind), device_of[v]
            arcs.add((("f", v), ("b", v)))
    passed: dict[tuple[object, object], int] = {}
    for u, v, k in graph.edges:
        nbytes = graph.variables[k].nbytes
        both = [(("f", u), ("f", v))]
        if k in graph.requires_backward and v in backward:
            both.append((("b", v), ("b", u)))
        for arc in both:
            passed[arc] = passed.get(arc, 0) + nbytes
    for (s, t), nbytes in passed.items():
        a, b = device_of[s[1]], device_of[t[1]]
        if a == b:
            arcs.add((s, t))
        else:
            ops[s, t] = cluster.transfer_seconds(nbytes, a, b), (a, b)
            arcs |= {(s, (s, t)), ((s, t), t)}
    return ops, arcs


def earliest(ops, arcs):
    """Least start times under these precedences; None where they close a cycle."""
    start = dict.fromkeys(ops, 0.0)
    for _ in range(len(ops) + 1):
        moved = False
        for i, j in arcs:
            if start[j] < start[i] + ops[i][0]:
                start[j], moved = start[i] + ops[i][0], True
        if not moved:
            return start
    return None


def closes_a_cycle(arcs, i, j):
    reached, front = set(), {j}
    while front:
        reached |= front
        front = {t for s, t in arcs if s in front} - reached
    return i in reached


def best_order(ops, arcs, best):
    """The least makespan below `best` with exclusive resources: branch on a pair that overlaps."""
    start = earliest(ops, arcs)
    end = {i: start[i] + ops[i][0] for i in ops}
    if max(end.values()) >= best - 1e-12:
        return best
    for i, j in itertools.combinations(ops, 2):
        clash = start[i] < end[j] - 1e-12 and start[j] < end[i] - 1e-12
        if ops[i][1] == ops[j][1] and clash:
            for arc in ((i, j), (j, i)):
                if not closes_a_cycle(arcs, *arc):
                    best = best_order(ops, arcs | {arc}, best)
            return best
    return max(end.values())


def best_of_all(problem):
    """The least makespan of all placements of atoms and all orders; infinite if nothing fits."""
    best = float("inf")
    for device_of in fitting(problem, atoms_of(problem.graph)):
        best = best_order(*operations(problem, device_of), best)
    return best


@settings(full_examples, max_examples=tried(150))
@given(problem=trained_problems(max_nodes=5, max_devices=2))
def test_without_coarsening_the_objective_is_the_least_of_all_placements_and_orders(problem):
    best = best_of_all(problem)
    try:
        placement = PestoFull(**FULL).partition(problem)
    except InfeasibleError:
        assert best == float("inf")
        return
    report = placement.report
    assert report.objective == pytest.approx(best, rel=1e-5, abs=1e-9)
    assert report.bound is None or report.bound <= report.objective
    if report.status == "limit":  # the engine's tolerance leaves open what the start already is
        return
    assert report.status == "optimal"
    assert report.bound == pytest.approx(report.objective, rel=1e-4, abs=1e-9)
    fixed = best_order(*operations(problem, placement.device_of), float("inf"))
    assert fixed == pytest.approx(report.objective, rel=1e-5, abs=1e-9)


def test_a_coarse_answer_is_optimal_for_its_vertices_and_says_how_many_there_are():
    problem = large_problem(60, devices=2)
    problem = replace(problem, graph=trained(problem.graph))
    report = PestoFull(target=8).partition(problem).report
    assert report.status == "optimal"
    assert report.notes["vertices"] >= 8
    assert report.bound <= report.objective <= report.notes["start_objective"]


def test_a_limit_answers_with_the_start(monkeypatch):
    monkeypatch.setattr(PlacementModel, "solve", lambda *_, **__: Solved(None, None, 0.0, False, False))
    placement = PestoFull(target=8).partition(large_problem(60))
    report = placement.report
    assert report.status == "limit"
    assert report.objective == report.notes["start_objective"]
    assert 0 < report.bound < report.objective
