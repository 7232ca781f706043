"""Pesto with exclusivity: equal to brute force over placements and orders, honest about its time."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from netsplit.errors import InfeasibleError
from netsplit.graph.quotient import atoms_of
from netsplit.partition.engines.outcome import Outcome
from netsplit.partition.methods.pesto.mip import Mip
from netsplit.partition.methods.pesto.pesto_full import PestoFull
from tests.examples import tried
from tests.partition.builders import large_problem, problems
from tests.partition.every_placement import fitting

EXACT = {"gap": 0.0, "target": 1000}
examples = settings(max_examples=tried(40), deadline=None, suppress_health_check=list(HealthCheck))


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


@settings(examples, max_examples=tried(150))
@given(problem=trained_problems(max_nodes=5, max_devices=2))
def test_without_coarsening_the_objective_is_the_least_of_all_placements_and_orders(problem):
    best = best_of_all(problem)
    try:
        placement = PestoFull(**EXACT).partition(problem)
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
    monkeypatch.setattr(Mip, "solve", lambda *_, **__: Outcome("none 0", "limit"))
    placement = PestoFull(target=8).partition(large_problem(60))
    report = placement.report
    assert report.status == "limit"
    assert report.objective == report.notes["start_objective"]
    assert 0 < report.bound < report.objective
